//! Decides whether a link is accepted, and reserves what it needs.

use std::sync::Arc;

use fe2o3_amqp_types::definitions::Error;
use fe2o3_amqp_types::performatives::Attach;
use tokio::sync::mpsc;

use super::attach::{Consume, Purpose, Service, node_address, purpose};
use super::connection::{CbsLink, Connection};
use super::consume;
use super::hub::Hub;
use super::message::AnyMessage;
use super::partition::Partition;
use super::receivers::Registration;
use super::requests::ReplyLinks;
use super::served::Serving;

/// What an accepted link does.
pub(super) enum Task {
    Requests { service: Service, cbs: Option<CbsLink> },
    Replies { responses: mpsc::Receiver<AnyMessage>, cbs: Option<CbsLink> },
    Publish { hub: Arc<Hub>, partition: Option<Arc<Partition>> },
    Consume { request: Consume, registration: Registration, start: i64, serving: Serving },
}

/// Returns the task of the link, or the error with which it is rejected.
///
/// A receiver is registered before the client sees the link: a link that is rejected because of others never looks
/// accepted. The same holds for the links of responses, where the client may wait at once.
pub(super) fn admit(connection: &Arc<Connection>, attach: &Attach, replies: &ReplyLinks) -> Result<Task, Error> {
    let is_authorized = connection.authorizations.permit(node_address(attach));
    Ok(match purpose(&connection.namespace, attach, is_authorized)? {
        Purpose::Requests(service) => {
            Task::Requests { service, cbs: connection.open_cbs(service, &attach.role, &attach.name)? }
        }
        Purpose::Replies { service, reply_to } => {
            let cbs = connection.open_cbs(service, &attach.role, &attach.name)?;
            Task::Replies { responses: replies.open(service, reply_to), cbs }
        }
        Purpose::Publish(hub, partition) => Task::Publish { hub, partition },
        Purpose::Consume(request) => {
            let (registration, start) = consume::begin(&request)?;
            Task::Consume { request, registration, start, serving: connection.served.begin(&attach.name) }
        }
    })
}
