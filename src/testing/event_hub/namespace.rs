//! All that a stand-in serves: its event hubs, and the key that opens them.

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

    /// The event hub of this name; case does not tell names apart.
    pub(super) fn hub(&self, name: &str) -> Option<&Arc<Hub>> {
        self.hubs.iter().find(|hub| hub.is_named(name))
    }
}
