//! Sends the events of a partition to a receiver.

use std::time::Duration;

use fe2o3_amqp::Sender;
use fe2o3_amqp_types::definitions::{AmqpError, Error, LinkError};
use tokio::sync::watch;
use tokio::time::timeout;

use super::attach::Consume;
use super::connection::Expiry;
use super::idle::idle_receiver;
use super::message::error;
use super::partition::Partition;
use super::receivers::{Refusal, Registration};
use super::served::Serving;

/// Sends events from `start` on as the receiver's credit permits, until the link ends or is idle for too long, its
/// authorization expires, or the receiver is displaced or detached.
pub(super) async fn serve(
    mut link: Sender,
    request: Consume,
    registration: Registration,
    start: i64,
    serving: Serving,
    idle: Duration,
    expiry: Expiry,
) {
    let sent = || {
        request.partition.count_sent();
        serving.count();
    };
    let reason = tokio::select! {
        biased;
        reason = expiry => Some(reason),
        reason = send(&mut link, &request.partition, start, registration, idle, sent) => reason,
    };
    tracing::debug!(
        partition = request.partition.id(),
        group = request.group,
        ?reason,
        "event hub emulator: receiver ended"
    );
    // The close may hang if the client detaches the link at the same time. No event is sent anymore.
    drop(serving);
    // The link ends, whatever the result.
    let _ = match reason {
        Some(reason) => link.close_with_error(reason).await,
        None => link.close().await,
    };
}

/// Registers the receiver. Returns the registration and the sequence number of its start.
pub(super) fn begin(request: &Consume) -> Result<(Registration, i64), Error> {
    let start = request.partition.start(request.selector)?;
    let registration = request.partition.receivers().register(&request.group, request.epoch).map_err(|refusal| {
        let text = refusal.to_string();
        match refusal {
            Refusal::Outranked { .. } => error(LinkError::Stolen, text),
            Refusal::TooMany => error(AmqpError::ResourceLimitExceeded, text),
        }
    })?;
    Ok((registration, start))
}

/// Returns the error with which to close the link, or `None` if the client ended it. The registration ends with this
/// function.
async fn send(
    link: &mut Sender,
    partition: &Partition,
    start: i64,
    mut registration: Registration,
    idle: Duration,
    sent: impl Fn(),
) -> Option<Error> {
    let mut end = partition.end();
    let mut next = start;
    loop {
        tokio::select! {
            biased;
            ending = &mut registration.ending => return Some(ending.ok()?.into()),
            advanced = advance(link, partition, &mut end, next, idle, &sent) => match advanced {
                Advanced::To(number) => next = number,
                Advanced::Ended => return None,
                Advanced::Idle => return Some(idle_receiver(link.name(), idle)),
            }
        }
    }
}

enum Advanced {
    /// To the event with this sequence number.
    To(i64),
    /// The link has ended.
    Ended,
    /// The receiver has given no credit for too long.
    Idle,
}

/// Sends the event with this sequence number, or the next one if that event does not exist anymore, or waits until
/// there is one.
async fn advance(
    link: &mut Sender,
    partition: &Partition,
    end: &mut watch::Receiver<i64>,
    next: i64,
    idle: Duration,
    sent: impl Fn(),
) -> Advanced {
    let awaited = match partition.at_or_after(next) {
        Ok(event) => {
            // Waits for credit.
            return match timeout(idle, link.send_batchable_ref(&event.sendable)).await {
                Ok(Ok(_settled)) => {
                    sent();
                    Advanced::To(event.position.sequence_number + 1)
                }
                Ok(Err(_)) => Advanced::Ended,
                Err(_) => Advanced::Idle,
            };
        }
        Err(awaited) => awaited,
    };
    tokio::select! {
        _ = link.on_detach() => Advanced::Ended,
        grown = end.wait_for(|end| *end > awaited) => if grown.is_ok() { Advanced::To(awaited) } else { Advanced::Ended },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fe2o3_amqp::acceptor::{ConnectionAcceptor, LinkAcceptor, LinkEndpoint, SessionAcceptor};
    use fe2o3_amqp::link::RecvError;
    use fe2o3_amqp::link::receiver::CreditMode;
    use fe2o3_amqp::{Connection, Receiver, Session};
    use fe2o3_amqp_types::messaging::Body;
    use fe2o3_amqp_types::primitives::Value;
    use futures::FutureExt;
    use futures::future::pending;
    use time::OffsetDateTime;
    use tokio::io::{DuplexStream, duplex};

    use super::*;
    use crate::event::Event;
    use crate::selector::Selector;
    use crate::served::Served;
    use crate::settings::HubSettings;

    const TIMEOUT: Duration = Duration::from_secs(10);
    /// Long enough for an unexpected event to arrive. Nothing here waits for the system, so paused time passes only
    /// when nothing else happens.
    const QUIET_TIME: Duration = Duration::from_millis(200);

    async fn serve_one_receiver(stream: DuplexStream, partition: Arc<Partition>) {
        let mut connection = ConnectionAcceptor::new("hub").accept(stream).await.expect("a connection");
        let mut session = SessionAcceptor::new().accept(&mut connection).await.expect("a session");
        let link = LinkAcceptor::new().accept(&mut session).await.expect("a link");
        let LinkEndpoint::Sender(link) = link else { panic!("the client receives") };
        let request = Consume { group: "group".into(), partition, selector: Selector::EARLIEST, epoch: None };
        let (registration, start) = begin(&request).expect("a valid start");
        let serving = Arc::new(Served::default()).begin("link");
        serve(link, request, registration, start, serving, TIMEOUT, pending().boxed()).await;
    }

    async fn next(receiver: &mut Receiver, limit: Duration) -> Option<Result<(), RecvError>> {
        timeout(limit, receiver.recv::<Body<Value>>()).await.ok().map(|received| received.map(|_event| ()))
    }

    #[tokio::test(start_paused = true)]
    async fn sends_no_more_events_than_the_credit() {
        let partition = Arc::new(Partition::new("0".into(), &HubSettings::new("hub")));
        let event = Event::parse(b"\x00\x53\x75\xa0\x03two").expect("an event");
        partition.append(&[event; 10], None, OffsetDateTime::UNIX_EPOCH);
        let (client, server) = duplex(64 * 1024);
        let server = tokio::spawn(serve_one_receiver(server, partition.clone()));
        let connection = Connection::builder().container_id("client").open_with_stream(client);
        let mut connection = timeout(TIMEOUT, connection).await.expect("in time").expect("a connection");
        let mut session = Session::begin(&mut connection).await.expect("a session");
        let builder = Receiver::builder().name("link").source("partition").credit_mode(CreditMode::Manual);
        let mut receiver = builder.attach(&mut session).await.expect("a link");

        for credit in [3, 2] {
            receiver.set_credit(credit).await.expect("an open link");
            for _ in 0..credit {
                assert!(matches!(next(&mut receiver, TIMEOUT).await, Some(Ok(()))));
            }
            assert!(next(&mut receiver, QUIET_TIME).await.is_none(), "more than {credit}");
        }

        assert_eq!(partition.receivers().count("group"), 1);
        receiver.close().await.expect("closed");
        timeout(TIMEOUT, server).await.expect("in time").expect("the task ended, although there was no credit");
        assert_eq!(partition.receivers().count("group"), 0);
    }
}
