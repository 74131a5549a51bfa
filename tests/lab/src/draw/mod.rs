//! Pictures of groups in time.

pub mod picture;
pub mod svg;
