//! The screen as text, and what the keys do. `SNAPSHOTS=overwrite` writes the snapshots again.

mod keys;
mod pictures;
mod sample;
mod template;
