//! The event hubs of an emulator, and the key for them.

use std::sync::Arc;

use super::hub::Hub;
use super::sas::SasKey;

#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) key: SasKey,
    hubs: Vec<Arc<Hub>>,
}

impl Namespace {
    pub(super) fn new(key: SasKey, hubs: Vec<Arc<Hub>>) -> Self {
        Self { key, hubs }
    }

    /// Returns the event hub with this name. Ignores case.
    pub(super) fn hub(&self, name: &str) -> Option<&Arc<Hub>> {
        self.hubs.iter().find(|hub| hub.is_named(name))
    }
}
