//! What examples and tests share.

pub mod azurite;
