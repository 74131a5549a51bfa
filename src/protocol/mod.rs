//! What comes next, for one partition's two blobs, and for an owner's presence: decided over plain values, without I/O.
//!
//! Each operation of the store is a small machine: it says which request to make, takes the answer, and says what that
//! means. The store drives the machines with requests; the exploration (a test) drives the same ones through every
//! order of events, lost answers and late writes, so that what is explored is what runs.
//!
//! `E` is whatever tells the versions of a blob apart: an ETag in the store, a small number in the exploration.
//! Wherever a write is to be made under `Option<E>`, nothing means: create the blob, if it does not exist.

mod adopt;
mod checkpoint;
mod handoff;
mod ownership;
mod presence;

pub use adopt::{Adopt, AdoptionWrite, Place, PositionFrom};
pub use checkpoint::{Checkpointing, Stored};
pub use handoff::{Looked, MarkedFor, Marking, Pursuing, Step, Waits, Whose, marking};
pub use ownership::{Found, Goal, Next, after_doubt, next_epoch, too_young_by};
pub use presence::{Announcing, Breaking, Present, Remains, announcing, breaking};
