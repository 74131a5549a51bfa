//! Carries events through the AMQP engine as opaque bytes.
//!
//! The engine decodes every message that it receives, and encodes every message that it sends. It cannot decode each
//! one that clients send, such as an application property that is a list, and not each one is encoded again to the same
//! bytes. So to the engine a published event is a message whose body consists of data sections, one around each piece
//! of the event that arrives in a transfer. An event that a receiver gets is a message with one data section around the
//! event, whose head is removed from the first transfer.
//!
//! Events are also sent with an empty delivery tag, like the service's (Azure/azure-event-hubs-node#113). The engine
//! numbers its deliveries.

use std::collections::{HashMap, HashSet};

use fe2o3_amqp_types::definitions::{DeliveryTag, Role};
use fe2o3_amqp_types::messaging::TargetArchetype;
use fe2o3_amqp_types::performatives::{Attach, Performative, Transfer};

use super::address::Address;
use super::encoding::{BINARY_8, data_head};
use super::frames::{Fate, Frame};
use super::message::MAX_MESSAGE_SIZE;

/// The length of the head of a data section whose length takes one byte, and of one whose length takes four.
const SHORT_HEAD: usize = 5;
const LONG_HEAD: usize = 8;
/// The place of the constructor in it.
const CONSTRUCTOR: usize = 3;

/// The links of a connection that carry events.
#[derive(Debug, Default)]
pub(super) struct Payloads {
    /// The client's links over which it publishes, by its channels and handles.
    published: HashSet<(u16, u32)>,
    /// The engine's links over which it sends events, by its channels and handles, and whether the next transfer
    /// continues an event.
    sent: HashMap<(u16, u32), bool>,
}

impl Payloads {
    /// Wraps the pieces of published events.
    pub(super) fn judge_client(&mut self, frame: &mut Frame<'_>) -> Fate {
        match &frame.performative {
            Performative::Begin(_) => self.published.retain(|(channel, _)| *channel != frame.channel),
            Performative::Attach(attach) => {
                let link = (frame.channel, attach.handle.0);
                if publishes(attach) {
                    self.published.insert(link);
                } else {
                    self.published.remove(&link);
                }
            }
            Performative::Transfer(transfer) if self.published.contains(&(frame.channel, transfer.handle.0)) => {
                frame.prefix = data_head(frame.payload.len()).to_vec();
                return Fate::Rewritten;
            }
            _ => {}
        }
        Fate::Passed
    }

    /// Unwraps the events that the engine sends, and announces the limit of the service for the size of a message.
    pub(super) fn judge_engine(&mut self, frame: &mut Frame<'_>) -> Fate {
        match &mut frame.performative {
            Performative::Begin(_) => self.sent.retain(|(channel, _), _| *channel != frame.channel),
            Performative::Attach(attach) if matches!(attach.role, Role::Receiver) => {
                attach.max_message_size = Some(MAX_MESSAGE_SIZE);
                return Fate::Rewritten;
            }
            Performative::Attach(attach) => {
                let link = (frame.channel, attach.handle.0);
                if sends_events(attach) {
                    self.sent.insert(link, false);
                } else {
                    self.sent.remove(&link);
                }
            }
            Performative::Transfer(transfer) => {
                if let Some(is_continued) = self.sent.get_mut(&(frame.channel, transfer.handle.0)) {
                    let is_first = !*is_continued;
                    *is_continued = transfer.more;
                    if is_first {
                        return unwrap(transfer, &mut frame.payload);
                    }
                }
            }
            _ => {}
        }
        Fate::Passed
    }
}

fn unwrap(transfer: &mut Transfer, payload: &mut &[u8]) -> Fate {
    let head = if payload.get(CONSTRUCTOR) == Some(&BINARY_8) { SHORT_HEAD } else { LONG_HEAD };
    *payload = payload.get(head..).unwrap_or_default();
    transfer.delivery_tag = Some(DeliveryTag::from(Vec::new()));
    Fate::Rewritten
}

fn publishes(attach: &Attach) -> bool {
    let Some(TargetArchetype::Target(target)) = attach.target.as_deref() else { return false };
    let address = target.address.as_deref().and_then(Address::parse);
    matches!(attach.role, Role::Sender) && matches!(address, Some(Address::Hub { .. } | Address::Partition { .. }))
}

fn sends_events(attach: &Attach) -> bool {
    let address = attach.source.as_ref().and_then(|source| Address::parse(source.address.as_deref()?));
    matches!(attach.role, Role::Sender) && matches!(address, Some(Address::ConsumerGroup { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{attach, transfer};

    fn frame(performative: Performative, payload: &[u8]) -> Frame<'_> {
        Frame { channel: 1, performative, prefix: Vec::new(), payload, bytes: &[] }
    }

    #[test]
    fn only_pieces_of_published_events_are_wrapped() {
        for (target, prefix) in [("hub/Partitions/0", &b"\x00\x53\x75\xb0\0\0\0\x05"[..]), ("$cbs", b"")] {
            let mut payloads = Payloads::default();
            payloads.judge_client(&mut frame(Performative::Attach(attach(Role::Sender, "client", target)), b""));
            for more in [true, false] {
                let mut sent = frame(transfer(more), b"piece");
                payloads.judge_client(&mut sent);
                assert_eq!((sent.prefix.as_slice(), sent.payload), (prefix, &b"piece"[..]), "{target}");
            }
        }
    }

    #[test]
    fn events_are_unwrapped_and_have_an_empty_tag() {
        let mut payloads = Payloads::default();
        let source = "hub/ConsumerGroups/$Default/Partitions/0";
        payloads.judge_engine(&mut frame(Performative::Attach(attach(Role::Sender, source, "client")), b""));
        for (more, payload, expected) in [
            (false, &b"\x00\x53\x75\xa0\x03one"[..], &b"one"[..]),
            (true, b"\x00\x53\x75\xb0\0\0\0\x0aevent", b"event"),
            (false, b"event", b"event"),
            (false, b"\x00\x53\x75\xa0\x03one", b"one"),
        ] {
            let mut sent = frame(transfer(more), payload);
            payloads.judge_engine(&mut sent);
            assert_eq!(sent.payload, expected);
        }
        let mut sent = frame(transfer(false), b"\x00\x53\x75\xa0\x03one");
        assert_eq!(payloads.judge_engine(&mut sent), Fate::Rewritten);
        let Performative::Transfer(sent) = sent.performative else { panic!("a transfer") };
        assert_eq!(sent.delivery_tag, Some(DeliveryTag::from(Vec::new())));
    }

    #[test]
    fn responses_stay_as_they_are() {
        let mut payloads = Payloads::default();
        payloads.judge_engine(&mut frame(Performative::Attach(attach(Role::Sender, "$management", "client")), b""));
        let mut sent = frame(transfer(false), b"\x00\x53\x75\xa0\x03one");
        assert_eq!(payloads.judge_engine(&mut sent), Fate::Passed);
    }

    #[test]
    fn publishers_see_the_limit_of_the_service() {
        let mut accepted = frame(Performative::Attach(attach(Role::Receiver, "client", "hub")), b"");
        assert_eq!(Payloads::default().judge_engine(&mut accepted), Fate::Rewritten);
        let Performative::Attach(accepted) = accepted.performative else { panic!("an attach") };
        assert_eq!(accepted.max_message_size, Some(MAX_MESSAGE_SIZE));
    }
}
