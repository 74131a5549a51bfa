//! Setters of settings structs and of their builders.

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

/// Setters of a builder that call the setters of its field `config`.
macro_rules! config_setters {
    ($config:ident: $($setter:ident($field:ident: $type:ty);)*) => {$(
        #[doc = concat!("See [`", stringify!($config), "::", stringify!($setter), "`].")]
        pub fn $setter(mut self, $field: $type) -> Self {
            self.config = self.config.$setter($field);
            self
        }
    )*};
}

pub(crate) use config_setters;
pub(crate) use setter;
pub(crate) use setters;
