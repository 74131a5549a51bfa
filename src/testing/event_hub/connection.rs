//! The state of a client's connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::namespace::Namespace;
use super::served::Served;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) namespace: Arc<Namespace>,
    pub(super) served: Arc<Served>,
    authorized: AtomicBool,
}

impl Connection {
    pub(super) fn new(namespace: Arc<Namespace>, served: Arc<Served>) -> Self {
        Self { namespace, served, authorized: AtomicBool::new(false) }
    }

    /// Records that the client has presented a valid token.
    pub(super) fn authorize(&self) {
        self.authorized.store(true, Ordering::Release);
    }

    pub(super) fn is_authorized(&self) -> bool {
        self.authorized.load(Ordering::Acquire)
    }
}
