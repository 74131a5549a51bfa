//! Random numbers: from a seed in repeatable tests, and from the operating system otherwise.

use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};

use crate::error::{Error, ErrorKind, Result};

/// Returns a generator with this seed, or with one from the operating system.
pub(crate) fn seeded(seed: Option<u64>) -> Result<StdRng> {
    match seed {
        Some(seed) => Ok(StdRng::seed_from_u64(seed)),
        None => StdRng::try_from_rng(&mut SysRng).map_err(|error| {
            Error::new(ErrorKind::Unavailable, "cannot obtain randomness from the operating system").with_source(error)
        }),
    }
}
