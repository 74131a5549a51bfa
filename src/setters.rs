//! Setters of settings structs.

/// One setter per public field. `Some(T)` sets an optional field.
macro_rules! setters {
    () => {};
    ($setter:ident($field:ident: Some($type:ty)); $($rest:tt)*) => {
        $crate::setters::setter!($setter, $field, $type, Some($field));
        $crate::setters::setters!($($rest)*);
    };
    ($setter:ident($field:ident: $type:ty); $($rest:tt)*) => {
        $crate::setters::setter!($setter, $field, $type, $field);
        $crate::setters::setters!($($rest)*);
    };
}

macro_rules! setter {
    ($setter:ident, $field:ident, $type:ty, $value:expr) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        #[must_use]
        pub fn $setter(mut self, $field: $type) -> Self {
            self.$field = $value;
            self
        }
    };
}

pub(crate) use setter;
pub(crate) use setters;
