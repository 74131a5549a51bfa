//! The state of a client's connection.

use std::sync::Arc;

use fe2o3_amqp_types::definitions::Error;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::authorizations::Authorizations;
use super::message::unauthorized;
use super::namespace::Namespace;
use super::served::Served;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) namespace: Arc<Namespace>,
    pub(super) served: Arc<Served>,
    pub(super) authorizations: Arc<Authorizations>,
}

/// Resolves to the error with which a link must be closed, when its authorization has ended.
pub(super) type Expiry = BoxFuture<'static, Error>;

impl Connection {
    pub(super) fn new(namespace: Arc<Namespace>, served: Arc<Served>) -> Self {
        let authorizations = namespace.new_authorizations();
        Self { namespace, served, authorizations }
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
}
