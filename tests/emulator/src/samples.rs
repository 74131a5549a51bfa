//! Performatives for tests, with defaults for most fields.

use fe2o3_amqp_types::definitions::{DeliveryTag, Handle, ReceiverSettleMode, Role, SenderSettleMode};
use fe2o3_amqp_types::messaging::{Source, Target, TargetArchetype};
use fe2o3_amqp_types::performatives::{Attach, Begin, Detach, Flow, Performative, Transfer};

/// Returns an attach with this role, source and target, of a link `link` with the handle 7.
pub(super) fn attach(role: Role, source: &str, target: &str) -> Attach {
    Attach {
        name: "link".into(),
        handle: Handle(7),
        role,
        snd_settle_mode: SenderSettleMode::default(),
        rcv_settle_mode: ReceiverSettleMode::default(),
        source: Some(Box::new(Source::from(source))),
        target: Some(Box::new(TargetArchetype::Target(Target::from(target)))),
        unsettled: None,
        incomplete_unsettled: false,
        initial_delivery_count: None,
        max_message_size: None,
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    }
}

/// Returns a response to a begin of the client's channel.
pub(super) fn begin_response(client_channel: u16) -> Performative {
    Performative::Begin(Begin {
        remote_channel: Some(client_channel),
        next_outgoing_id: 0,
        incoming_window: 1,
        outgoing_window: 1,
        handle_max: Handle(9),
        offered_capabilities: None,
        desired_capabilities: None,
        properties: None,
    })
}

/// Returns a flow of a link, or of a session.
pub(super) fn flow(handle: Option<u32>) -> Performative {
    Performative::Flow(Flow {
        next_incoming_id: Some(0),
        incoming_window: 1,
        next_outgoing_id: 0,
        outgoing_window: 1,
        handle: handle.map(Handle),
        delivery_count: None,
        link_credit: None,
        available: None,
        drain: false,
        echo: false,
        properties: None,
    })
}

/// Returns a transfer over the link with the handle 7.
pub(super) fn transfer(more: bool) -> Performative {
    Performative::Transfer(Transfer {
        handle: Handle(7),
        delivery_id: Some(3),
        delivery_tag: Some(DeliveryTag::from(vec![1])),
        message_format: Some(0),
        settled: Some(true),
        more,
        rcv_settle_mode: None,
        state: None,
        resume: false,
        aborted: false,
        batchable: true,
    })
}

pub(super) fn detach(handle: u32) -> Performative {
    Performative::Detach(Detach { handle: Handle(handle), closed: true, error: None })
}
