//! Time: the one place where the local wall clock is read, and waiting for a moment that may not be set.

use std::fmt;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep_until};

/// The local wall clock. It decides nothing about ownership; requests signed with an account key need it for their
/// date. A port, so that tests can put it wrong.
pub trait WallClock: fmt::Debug + Send + Sync {
    /// What this machine takes for the current time.
    fn now(&self) -> OffsetDateTime;
}

/// The clock of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemWallClock;

impl WallClock for SystemWallClock {
    #[expect(clippy::disallowed_methods, reason = "this is the port itself")]
    fn now(&self) -> OffsetDateTime {
        OffsetDateTime::now_utc()
    }
}

/// Ready at this moment; never, if there is none.
pub(crate) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
