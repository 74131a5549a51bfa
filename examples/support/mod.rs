//! Code that examples and tests share.

pub(crate) mod azurite;
pub(crate) mod install;
pub(crate) mod repository;
