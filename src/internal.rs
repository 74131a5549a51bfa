//! What only the tests of this crate use. It may change at any time.

/// Planning.
pub mod balance {
    pub use crate::balance::*;
}

/// Time.
pub mod clock {
    pub use crate::clock::*;
}

/// The wire format.
pub mod codec {
    pub use crate::codec::*;
}

/// Locks.
pub mod lock {
    pub use crate::lock::*;
}

/// The rules of the store.
pub mod protocol {
    pub use crate::protocol::*;
}
