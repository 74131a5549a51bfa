//! Pictures of groups over time.

pub mod picture;
pub mod svg;
