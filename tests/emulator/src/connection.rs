//! The state of a client's connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fe2o3_amqp_types::definitions::{AmqpError, Error, Role};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::attach::Service;
use super::authorizations::Authorizations;
use super::message::{error, unauthorized};
use super::namespace::Namespace;
use super::served::{Served, Serving};

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) namespace: Arc<Namespace>,
    pub(super) served: Arc<Served>,
    pub(super) authorizations: Arc<Authorizations>,
    /// Whether there is a link to `$cbs` for requests, and one for responses.
    cbs_requests: Arc<AtomicBool>,
    cbs_responses: Arc<AtomicBool>,
}

/// Resolves to the error with which a link must be closed, when its authorization has ended.
pub(super) type Expiry = BoxFuture<'static, Error>;

/// The only link to `$cbs` of its direction, until it is dropped.
#[derive(Debug)]
pub(super) struct CbsLink {
    is_open: Arc<AtomicBool>,
    _serving: Serving,
}

impl Connection {
    pub(super) fn new(namespace: Arc<Namespace>, served: Arc<Served>) -> Self {
        let authorizations = namespace.new_authorizations();
        Self { namespace, served, authorizations, cbs_requests: Arc::default(), cbs_responses: Arc::default() }
    }

    /// Returns the end of the authorization of a link to this address.
    pub(super) fn expiry(&self, address: String) -> Expiry {
        let authorizations = self.authorizations.clone();
        async move {
            authorizations.lost(&address).await;
            unauthorized(&address)
        }
        .boxed()
    }

    /// Reserves `$cbs` for a link of this name, if the link is to that service. A connection has one pair of such
    /// links; the service refuses another one with this text (Azure/azure-event-hubs-node#174).
    pub(super) fn open_cbs(&self, service: Service, role: &Role, name: &str) -> Result<Option<CbsLink>, Error> {
        if service != Service::Cbs {
            return Ok(None);
        }
        let is_open = match role {
            Role::Sender => &self.cbs_requests,
            Role::Receiver => &self.cbs_responses,
        };
        if is_open.swap(true, Ordering::AcqRel) {
            let text = "A link to connection '1' $cbs node has already been opened.";
            return Err(error(AmqpError::NotAllowed, text));
        }
        Ok(Some(CbsLink { is_open: is_open.clone(), _serving: self.served.begin(name) }))
    }
}

impl Drop for CbsLink {
    fn drop(&mut self) {
        self.is_open.store(false, Ordering::Release);
    }
}
