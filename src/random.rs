//! Random numbers: from a seed in repeatable tests, and from the operating system otherwise.

use rand::rngs::{StdRng, SysRng};
use rand::{Rng, SeedableRng};

use crate::error::{Error, ErrorKind, Result};
use crate::model::OwnerId;

/// Returns a generator with this seed, or with one from the operating system.
pub(crate) fn seeded(seed: Option<u64>) -> Result<StdRng> {
    match seed {
        Some(seed) => Ok(StdRng::seed_from_u64(seed)),
        None => StdRng::try_from_rng(&mut SysRng).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "cannot obtain randomness from the operating system").with_source(error)
        }),
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
        let mut rng = seeded(None)?;
        Ok(Self::recorded(&format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64())))
    }
}
