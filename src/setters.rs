//! Setters of settings structs.

/// One setter per public field, with its documentation. `Some(T)` sets an optional field.
macro_rules! setters {
    () => {};
    ($(#[$doc:meta])* $setter:ident($field:ident: Some($type:ty)); $($rest:tt)*) => {
        $crate::setters::setter!($(#[$doc])* $setter, $field, $type, Some($field));
        $crate::setters::setters!($($rest)*);
    };
    ($(#[$doc:meta])* $setter:ident($field:ident: $type:ty); $($rest:tt)*) => {
        $crate::setters::setter!($(#[$doc])* $setter, $field, $type, $field);
        $crate::setters::setters!($($rest)*);
    };
}

macro_rules! setter {
    ($(#[$doc:meta])* $setter:ident, $field:ident, $type:ty, $value:expr) => {
        $(#[$doc])*
        #[must_use]
        pub fn $setter(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    };
}

pub(crate) use setter;
pub(crate) use setters;
