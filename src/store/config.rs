//! Settings of a store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{BlobNameCase, LeaseDurations};
use crate::util::{setters, show_setting};

/// How a [`GroupStore`](super::GroupStore) works with the records of its consumer group.
///
/// An application can keep these settings in its own configuration file: durations are written as in `90s` or `2m`, and
/// settings that are left out have their defaults. Minor versions add fields, so end a literal with
/// `..StoreConfig::default()`, or use the setters.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::store::StoreConfig;
///
/// let config: StoreConfig = serde_json::from_str(r#"{ "lease_duration": "30s", "create_container": true }"#)?;
/// assert_eq!(config, StoreConfig::default().with_lease_duration(Duration::from_secs(30)).with_create_container(true));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// See [`with_lease_duration`](Self::with_lease_duration).
    #[doc(alias = "partition_expiration_duration")]
    #[serde(with = "humantime_serde")]
    pub lease_duration: Duration,
    /// See [`with_foreign_lease_duration`](Self::with_foreign_lease_duration).
    #[serde(with = "humantime_serde")]
    pub foreign_lease_duration: Duration,
    /// See [`with_request_timeout`](Self::with_request_timeout).
    #[serde(with = "humantime_serde")]
    pub request_timeout: Option<Duration>,
    /// See [`with_max_concurrent_requests`](Self::with_max_concurrent_requests).
    pub max_concurrent_requests: usize,
    /// See [`with_blob_name_case`](Self::with_blob_name_case).
    pub blob_name_case: BlobNameCase,
    /// See [`with_create_container`](Self::with_create_container).
    pub create_container: bool,
    /// See [`with_verify_storage`](Self::with_verify_storage).
    pub verify_storage: bool,
}

/// Settings of the store that limit what the balancer and the processor accept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseTimes {
    pub(crate) lease_duration: Duration,
    pub(crate) request_timeout: Duration,
}

impl LeaseTimes {
    /// Returns the lease duration for an error that names it.
    pub(crate) fn show_lease_duration(self) -> String {
        show_setting(self.lease_duration, StoreConfig::default().lease_duration)
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(60),
            foreign_lease_duration: Duration::from_secs(180),
            request_timeout: None,
            max_concurrent_requests: 32,
            blob_name_case: BlobNameCase::default(),
            create_container: false,
            verify_storage: true,
        }
    }
}

impl StoreConfig {
    /// Returns the settings with which the partitions of a crashed instance are read again within 20 s: a lease
    /// duration of 14 s, and 2 s for a request, so that a heartbeat that is lost is repeated in time. Use it together
    /// with [`ProcessorConfig::fast_failover`](crate::processor::ProcessorConfig::fast_failover), which states the
    /// costs. It concerns the partitions of the instances that use it; an ordinary rolling deployment introduces it.
    #[must_use]
    pub fn fast_failover() -> Self {
        Self::default().with_lease_duration(Duration::from_secs(14)).with_request_timeout(Duration::from_secs(2))
    }

    setters! {
        /// Sets how long an ownership is valid after its last renewal. After that time other instances may claim the
        /// partition. Default 60 s, the shortest default of the other SDKs. At least 4 s, because server times have a
        /// resolution of one second, and at most a day.
        ///
        /// Every record says how long it is valid, so instances of one group may use different durations, and a new one
        /// can be rolled out instance by instance. The balancing loop requires at least three load-balancing intervals.
        #[doc(alias = "partition_expiration_duration")]
        #[doc(alias = "expiry")]
        with_lease_duration(lease_duration: Duration);
        /// Sets how long an ownership of another SDK, whose record does not say so, is valid after its last renewal.
        /// Default 180 s, the longest default of the other SDKs. At least 4 s, and at most a day.
        with_foreign_lease_duration(foreign_lease_duration: Duration);
        /// Sets how long one request to the storage may take. Default: 5 s, or a quarter of the lease duration if that
        /// is less, so that there is time to repeat a renewal that hangs. Less than half the lease duration. The wait
        /// for a token counts. A listing that timed out has twice the time when it is repeated, up to half the lease
        /// duration.
        with_request_timeout(request_timeout: Some(Duration));
        /// Sets how many operations may run at the same time, on ownerships and on checkpoints each. Default 32.
        with_max_concurrent_requests(max_concurrent_requests: usize);
        /// Sets the casing of the blob names. Default [`BlobNameCase::Auto`]: the casing in which the group has
        /// records. If the names of the group contain capitals, as `$Default` does, `connect` looks at both casings. It
        /// fails if the group has a live owner in the casing that it does not use, whatever is set here, because the
        /// two would own the same partitions.
        with_blob_name_case(blob_name_case: BlobNameCase);
        /// Sets whether `connect` creates the container if it does not exist; a checkpoint store for the official
        /// processor creates it at its first use. Default false, because credentials often do not permit it. For a
        /// container that exists they need not.
        with_create_container(create_container: bool);
        /// Sets whether `connect` also verifies that the storage does what ownership needs: that it rejects a
        /// conditional write whose condition is not met, shows metadata in listings, and permits listing, reading and
        /// writing. `connect` fails if it does not. A backend that works with restrictions is logged as a warning and
        /// reported by [`GroupStore::storage_warnings`](super::GroupStore::storage_warnings).
        ///
        /// Default true. It costs twelve requests per start; without it, a blob service that ignores conditions goes
        /// unnoticed, and several instances can own one partition. Turn it off for a store that must not write.
        with_verify_storage(verify_storage: bool);
    }

    /// The duration that [`with_request_timeout`](Self::with_request_timeout) sets, or its default.
    pub(super) fn effective_request_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or_else(|| Duration::from_secs(5).min(self.lease_duration / 4))
    }

    pub(crate) fn lease_times(&self) -> LeaseTimes {
        LeaseTimes { lease_duration: self.lease_duration, request_timeout: self.effective_request_timeout() }
    }

    pub(super) fn lease_durations(&self) -> LeaseDurations {
        LeaseDurations::new(self.lease_duration, self.foreign_lease_duration)
    }

    /// Checks these settings without connecting to anything, as `connect` does first.
    /// [`ProcessorConfig::check_settings`](crate::processor::ProcessorConfig::check_settings) includes this.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if a setting is invalid: the message names the setter, which is
    /// `with_x` for the setting `x` of a file, and the rule.
    pub fn check_settings(&self) -> Result<()> {
        let lease = self.lease_duration;
        let foreign = self.foreign_lease_duration;
        for (setter, duration) in [("with_lease_duration", lease), ("with_foreign_lease_duration", foreign)] {
            if duration < LeaseDurations::SHORTEST {
                return Err(Error::config(format!(
                    "`{setter}` is {duration:?}, but must be at least {:?}, because server times have a resolution \
                     of one second",
                    LeaseDurations::SHORTEST
                )));
            }
            if duration > LeaseDurations::LONGEST {
                return Err(Error::config(format!("`{setter}` is {duration:?}, but must be at most a day")));
            }
        }
        let timeout = self.effective_request_timeout();
        if timeout.is_zero() || timeout >= lease / 2 {
            return Err(Error::config(format!(
                "`with_request_timeout` is {timeout:?}, but must be more than zero and less than half of \
                 `with_lease_duration`, {}",
                self.lease_times().show_lease_duration()
            )));
        }
        if self.max_concurrent_requests == 0 {
            return Err(Error::config("`with_max_concurrent_requests` is 0, but must be at least 1"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn refused(config: &StoreConfig) -> String {
        config.check_settings().unwrap_err().to_string()
    }

    #[test]
    fn defaults_are_accepted() {
        let config = StoreConfig::default();
        config.check_settings().unwrap();
        assert_eq!(config.effective_request_timeout(), 5 * SECOND);
        assert_eq!(config.with_lease_duration(8 * SECOND).effective_request_timeout(), 2 * SECOND);
    }

    #[test]
    fn an_error_names_the_setter_and_the_value() {
        let config = StoreConfig::default;
        for (config, setter, value) in [
            (config().with_lease_duration(3 * SECOND), "with_lease_duration", "3s"),
            (config().with_lease_duration(100_000 * SECOND), "with_lease_duration", "100000s"),
            (config().with_foreign_lease_duration(100_000 * SECOND), "with_foreign_lease_duration", "100000s"),
            (config().with_foreign_lease_duration(3 * SECOND), "with_foreign_lease_duration", "3s"),
            (config().with_request_timeout(30 * SECOND), "with_request_timeout", "30s"),
            (config().with_request_timeout(Duration::ZERO), "with_request_timeout", "0ns"),
            (config().with_max_concurrent_requests(0), "with_max_concurrent_requests", "0"),
        ] {
            let message = refused(&config);
            assert!(message.contains(setter) && message.contains(value), "{message}");
        }
    }

    #[test]
    fn a_file_sets_what_it_names() {
        let text = r#"{
            "lease_duration": "90s", "foreign_lease_duration": "5m", "request_timeout": "750ms",
            "max_concurrent_requests": 8, "blob_name_case": "verbatim",
            "create_container": true, "verify_storage": false
        }"#;
        let config = StoreConfig::default()
            .with_lease_duration(90 * SECOND)
            .with_foreign_lease_duration(300 * SECOND)
            .with_request_timeout(Duration::from_millis(750))
            .with_max_concurrent_requests(8)
            .with_blob_name_case(BlobNameCase::Verbatim)
            .with_create_container(true)
            .with_verify_storage(false);
        assert_eq!(serde_json::from_str::<StoreConfig>(text).unwrap(), config);
        assert_eq!(serde_json::from_str::<StoreConfig>("{}").unwrap(), StoreConfig::default());
        let error = serde_json::from_str::<StoreConfig>(r#"{ "expiry": "90s" }"#).unwrap_err();
        assert!(error.to_string().contains("expiry"), "{error}");
    }
}
