//! Tools without a subject of their own: locks, panics, randomness and random owner IDs, the environment, serialized
//! durations, and setters.

use std::any::Any;
#[cfg(any(feature = "azure", feature = "eventhubs"))]
use std::env::VarError;
use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(feature = "azure")]
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use humantime_serde::re::humantime::parse_duration;
use rand::rngs::{StdRng, SysRng};
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Result};
use crate::model::OwnerId;

/// Locks a mutex, even if it is poisoned: a panic in one task does not stop other tasks.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, even if the lock is poisoned.
#[cfg(feature = "azure")]
pub(crate) fn lock_for_reading<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, even if the lock is poisoned.
#[cfg(feature = "azure")]
pub(crate) fn lock_for_writing<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Returns a generator of random numbers with this seed, or with one from the operating system.
pub(crate) fn rng_from_seed(seed: Option<u64>) -> Result<StdRng> {
    match seed {
        Some(seed) => Ok(StdRng::seed_from_u64(seed)),
        None => StdRng::try_from_rng(&mut SysRng).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "cannot obtain randomness from the operating system").with_source(error)
        }),
    }
}

/// Returns the value of an environment variable with a secret, which no error shows.
#[cfg(any(feature = "azure", feature = "eventhubs"))]
pub(crate) fn read_variable(name: &str) -> Result<String> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => Ok(value),
        Ok(_) | Err(VarError::NotPresent) => Err(Error::config(format!("the environment variable {name} is not set"))),
        Err(VarError::NotUnicode(_)) => Err(Error::config(format!("the environment variable {name} is not UTF-8"))),
    }
}

impl OwnerId {
    /// Creates a random id, for instances that have no stable name. A restarted instance then has another id, and waits
    /// until the leases of the previous one have expired or were released.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the operating system provides no random numbers.
    ///
    /// ```
    /// use eventhubs_checkpoint::OwnerId;
    /// assert_ne!(OwnerId::random()?, OwnerId::random()?);
    /// # Ok::<(), eventhubs_checkpoint::Error>(())
    /// ```
    pub fn random() -> Result<Self> {
        let mut rng = rng_from_seed(None)?;
        Ok(Self::from_record(&format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64())))
    }
}

/// Returns the value of a setting for an error that names it. The application may not know that it is the default.
pub(crate) fn show_setting(value: Duration, default: Duration) -> String {
    if value == default { format!("{value:?} (the default)") } else { format!("{value:?}") }
}

/// Writes a duration of a serialized status as a number of seconds.
pub(crate) fn serialize_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn serialize_optional_seconds<S: Serializer>(
    duration: &Option<Duration>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
}

/// Writes a duration of a configuration file, as in `90s`, or `never`: not every format has a null.
#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
pub(crate) fn serialize_or_never<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => humantime_serde::serialize(duration, serializer),
        None => serializer.serialize_str("never"),
    }
}

/// Reads what [`serialize_or_never`] writes.
pub(crate) fn deserialize_or_never<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    match text.as_deref() {
        None | Some("never") => Ok(None),
        Some(text) => parse_duration(text).map(Some).map_err(serde::de::Error::custom),
    }
}

/// One setter per public field, with its documentation. `Some(T)` sets an optional field.
macro_rules! setters {
    () => {};
    ($(#[$doc:meta])* $setter:ident($field:ident: Some($type:ty)); $($rest:tt)*) => {
        $crate::util::setter!($(#[$doc])* $setter, $field, $type, Some($field));
        $crate::util::setters!($($rest)*);
    };
    ($(#[$doc:meta])* $setter:ident($field:ident: $type:ty); $($rest:tt)*) => {
        $crate::util::setter!($(#[$doc])* $setter, $field, $type, $field);
        $crate::util::setters!($($rest)*);
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
