//! The event hubs of an emulator, and the tokens for them.

use std::sync::{Arc, Mutex, RwLock, Weak};

use super::authorizations::Authorizations;
use super::clock::EmulatorClock;
use super::hub::Hub;
use super::limits::Limits;
use super::quota::Quota;
use super::sas::SasKey;
use super::settings::HubSettings;
use super::tokens::Tokens;
use crate::lock::{lock, read, write};

#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) tokens: Arc<Tokens>,
    pub(super) clock: Arc<EmulatorClock>,
    pub(super) limits: Limits,
    pub(super) management_quota: Quota,
    /// Each is replaced when it is recreated, and none is removed.
    hubs: RwLock<Vec<Arc<Hub>>>,
    /// Of the open connections.
    authorizations: Mutex<Vec<Weak<Authorizations>>>,
}

impl Namespace {
    /// Creates a namespace with checked settings of its event hubs.
    pub(super) fn new(key: SasKey, limits: Limits, hubs: Vec<HubSettings>) -> Self {
        Self::with(Arc::new(Tokens::new(key)), Arc::default(), limits, hubs)
    }

    fn with(tokens: Arc<Tokens>, clock: Arc<EmulatorClock>, limits: Limits, hubs: Vec<HubSettings>) -> Self {
        let hubs = hubs.into_iter().map(|settings| Arc::new(Hub::new(settings, clock.clone()))).collect();
        Self {
            tokens,
            clock,
            limits,
            management_quota: Quota::new(limits.management_quota),
            hubs: RwLock::new(hubs),
            authorizations: Mutex::default(),
        }
    }

    /// Returns the namespace to which the metadata of this one are replicated: with the same event hubs, empty. Both
    /// accept the same tokens.
    pub(super) fn secondary(&self) -> Self {
        let hubs = read(&self.hubs).iter().map(|hub| hub.settings().clone()).collect();
        Self::with(self.tokens.clone(), self.clock.clone(), self.limits, hubs)
    }

    /// Returns whether an event hub is geo-replicated.
    pub(super) fn is_geo_replicated(&self) -> bool {
        read(&self.hubs).iter().any(|hub| hub.settings().is_geo_replicated)
    }

    /// Returns the event hub with this name. Ignores case.
    pub(super) fn hub(&self, name: &str) -> Option<Arc<Hub>> {
        read(&self.hubs).iter().find(|hub| hub.is_named(name)).cloned()
    }

    /// Returns the place of the event hub with this name. Ignores case.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        read(&self.hubs).iter().position(|hub| hub.is_named(name))
    }

    /// Returns the event hub at a place that [`place`](Self::place) has returned.
    pub(super) fn hub_at(&self, place: usize) -> Arc<Hub> {
        read(&self.hubs)[place].clone()
    }

    /// Replaces the event hub at this place by an empty one with the same settings, and detaches the links of the
    /// former.
    pub(super) fn recreate(&self, place: usize) {
        let former = {
            let hub = &mut write(&self.hubs)[place];
            let new = Hub::new(hub.settings().clone(), self.clock.clone());
            std::mem::replace(hub, Arc::new(new))
        };
        former.delete();
    }

    /// Returns the authorizations of a new connection: none.
    pub(super) fn new_authorizations(&self) -> Arc<Authorizations> {
        let new = Arc::new(Authorizations::new(self.clock.clone()));
        let mut open = lock(&self.authorizations);
        open.retain(|authorizations| authorizations.strong_count() > 0);
        open.push(Arc::downgrade(&new));
        new
    }

    /// Ends the authorizations whose path contains this text, on all connections. Returns their number.
    pub(super) fn expire_authorizations(&self, text: &str) -> usize {
        let open: Vec<_> = lock(&self.authorizations).iter().filter_map(Weak::upgrade).collect();
        open.iter().map(|authorizations| authorizations.expire(text)).sum()
    }
}
