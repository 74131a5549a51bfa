//! The name under which clients find a namespace.

use std::sync::{Arc, RwLock};

use super::namespace::Namespace;
use crate::lock::{read, write};

/// An alias of the geo-disaster recovery: its namespace can be replaced by the secondary one.
#[derive(Debug)]
pub(super) struct Alias {
    current: RwLock<Arc<Namespace>>,
}

impl Alias {
    pub(super) fn new(primary: Namespace) -> Self {
        Self { current: RwLock::new(Arc::new(primary)) }
    }

    /// Returns the namespace that new connections reach.
    pub(super) fn current(&self) -> Arc<Namespace> {
        read(&self.current).clone()
    }

    /// Lets new connections reach a namespace with the same event hubs, empty. The open ones keep the former.
    pub(super) fn fail_over(&self) {
        let mut current = write(&self.current);
        *current = Arc::new(current.secondary());
    }
}
