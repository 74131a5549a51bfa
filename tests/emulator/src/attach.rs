//! The purpose of a link, read from the client's attach.

use std::sync::Arc;

use fe2o3_amqp_types::definitions::{AmqpError, Error, Role};
use fe2o3_amqp_types::messaging::TargetArchetype;
use fe2o3_amqp_types::performatives::Attach;
use fe2o3_amqp_types::primitives::{Symbol, Value};

use super::address::Address;
use super::hub::Hub;
use super::message::{ARGUMENT_OUT_OF_RANGE, condition, error, not_found, unauthorized};
use super::namespace::Namespace;
use super::partition::Partition;
use super::selector::Selector;

/// A node that responds to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Service {
    Cbs,
    Management,
}

/// The purpose of a link.
#[derive(Debug)]
pub(super) enum Purpose {
    /// The client sends requests.
    Requests(Service),
    /// The client receives the responses to requests that name this address.
    Replies { service: Service, reply_to: String },
    /// The client sends events to the hub. `None` means any partition.
    Publish(Arc<Hub>, Option<Arc<Partition>>),
    /// The client receives events.
    Consume(Consume),
}

/// The request of a receiver of events.
#[derive(Debug)]
pub(super) struct Consume {
    pub(super) group: String,
    pub(super) partition: Arc<Partition>,
    pub(super) selector: Selector,
    pub(super) epoch: Option<i64>,
}

/// Returns the purpose of the link, or the error with which it is rejected. `authorized` means that the tokens of the
/// connection permit a link to the address.
pub(super) fn purpose(namespace: &Namespace, attach: &Attach, authorized: bool) -> Result<Purpose, Error> {
    let address = node_address(attach);
    let node = Address::parse(address).ok_or_else(|| not_found(address))?;
    if !authorized && node != Address::Cbs {
        return Err(unauthorized(address));
    }
    let client_sends = matches!(attach.role, Role::Sender);
    match (node, client_sends) {
        (Address::Cbs, true) => Ok(Purpose::Requests(Service::Cbs)),
        (Address::Cbs, false) => Ok(replies(Service::Cbs, attach)),
        (Address::Management, true) => Ok(Purpose::Requests(Service::Management)),
        (Address::Management, false) => Ok(replies(Service::Management, attach)),
        (Address::Hub { hub }, true) => {
            let hub = namespace.hub(&hub).ok_or_else(|| not_found(address))?;
            Ok(Purpose::Publish(hub, None))
        }
        (Address::Partition { hub, partition }, true) => {
            let hub = namespace.hub(&hub).ok_or_else(|| not_found(address))?;
            let partition = hub.partition(&partition).ok_or_else(|| no_such_partition(&hub))?;
            Ok(Purpose::Publish(hub, Some(partition)))
        }
        (Address::ConsumerGroup { hub, group, partition }, false) => {
            let hub = namespace.hub(&hub).ok_or_else(|| not_found(address))?;
            let group = hub.consumer_group(&group).ok_or_else(|| not_found(address))?;
            let partition = hub.partition(&partition).ok_or_else(|| no_such_partition(&hub))?;
            consume(attach, group, partition).map(Purpose::Consume)
        }
        _ => Err(not_found(address)),
    }
}

fn no_such_partition(hub: &Hub) -> Error {
    error(condition(ARGUMENT_OUT_OF_RANGE), hub.unknown_partition())
}

fn replies(service: Service, attach: &Attach) -> Purpose {
    Purpose::Replies { service, reply_to: target_address(attach).to_owned() }
}

fn consume(attach: &Attach, group: &str, partition: Arc<Partition>) -> Result<Consume, Error> {
    Ok(Consume { group: group.to_owned(), partition, selector: selector(attach)?, epoch: epoch(attach) })
}

/// Returns the address of the node on the hub's side.
pub(super) fn node_address(attach: &Attach) -> &str {
    match attach.role {
        Role::Sender => target_address(attach),
        Role::Receiver => attach.source.as_ref().and_then(|source| source.address.as_deref()).unwrap_or_default(),
    }
}

fn target_address(attach: &Attach) -> &str {
    match attach.target.as_deref() {
        Some(TargetArchetype::Target(target)) => target.address.as_deref().unwrap_or_default(),
        _ => "",
    }
}

fn selector(attach: &Attach) -> Result<Selector, Error> {
    let filter = attach.source.as_ref().and_then(|source| source.filter.as_ref());
    let Some(filter) = filter.and_then(|filter| filter.values().next()) else {
        return Ok(Selector::EARLIEST);
    };
    let text = match filter {
        Value::Described(described) => &described.value,
        legacy => legacy,
    };
    let selector = match text {
        Value::String(text) => Selector::parse(text),
        _ => None,
    };
    selector.ok_or_else(|| {
        let text =
            format!("The filter {text:?} is unknown. Use a selector such as \"amqp.annotation.x-opt-offset > '-1'\".");
        error(AmqpError::InvalidField, text)
    })
}

fn epoch(attach: &Attach) -> Option<i64> {
    match attach.properties.as_ref()?.get(&Symbol::from("com.microsoft:epoch"))? {
        Value::Long(epoch) => Some(*epoch),
        Value::Int(epoch) => Some(i64::from(*epoch)),
        Value::Uint(epoch) => Some(i64::from(*epoch)),
        Value::Ulong(epoch) => i64::try_from(*epoch).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::samples::attach;
    use crate::sas::SasKey;
    use crate::settings::HubSettings;
    use fe2o3_amqp_types::definitions::{ErrorCondition, Fields};

    fn namespace() -> Namespace {
        let hub = HubSettings::new("hub").with_partitions(2).with_consumer_group("other");
        let second = HubSettings::new("second").with_partitions(3);
        let key = SasKey { name: "name".into(), secret: "key".into() };
        Namespace::new(key, Limits::default(), vec![hub, second])
    }

    fn sending_to(address: &str) -> Attach {
        attach(Role::Sender, "client", address)
    }

    fn receiving_from(address: &str) -> Attach {
        attach(Role::Receiver, address, "client")
    }

    fn refusal(attach: &Attach) -> ErrorCondition {
        purpose(&namespace(), attach, true).expect_err("refused").condition
    }

    #[test]
    fn link_purpose_follows_the_address() {
        let namespace = namespace();
        let purpose = |attach: Attach| purpose(&namespace, &attach, true).expect("accepted");
        assert!(matches!(purpose(sending_to("$cbs")), Purpose::Requests(Service::Cbs)));
        assert!(matches!(purpose(sending_to("hub/$management")), Purpose::Requests(Service::Management)));
        assert!(matches!(purpose(receiving_from("$management")),
            Purpose::Replies { service: Service::Management, reply_to } if reply_to == "client"));
        assert!(matches!(purpose(sending_to("hub")), Purpose::Publish(hub, None) if hub.name == "hub"));
        assert!(matches!(purpose(sending_to("hub/Partitions/1")),
            Purpose::Publish(hub, Some(partition)) if hub.name == "hub" && partition.id() == "1"));
        assert!(matches!(purpose(sending_to("second/Partitions/2")),
            Purpose::Publish(hub, Some(partition)) if hub.name == "second" && partition.id() == "2"));
        assert!(matches!(purpose(receiving_from("hub/ConsumerGroups/$default/Partitions/0")),
            Purpose::Consume(Consume { group, epoch: None, selector: Selector::EARLIEST, .. }) if group == "$Default"));
    }

    #[test]
    fn missing_nodes_are_not_found() {
        let missing = [
            sending_to("nohub"),
            sending_to("hub/ConsumerGroups/other/Partitions/0"),
            receiving_from("hub"),
            receiving_from("nohub/ConsumerGroups/other/Partitions/0"),
            receiving_from("hub/ConsumerGroups/third/Partitions/0"),
            receiving_from("second/ConsumerGroups/other/Partitions/0"),
        ];
        for attach in missing {
            assert_eq!(refusal(&attach), AmqpError::NotFound.into(), "{attach:?}");
        }
    }

    #[test]
    fn an_unknown_partition_is_out_of_range() {
        for attach in [sending_to("hub/Partitions/2"), receiving_from("hub/ConsumerGroups/other/Partitions/XYZ")] {
            let refusal = purpose(&namespace(), &attach, true).expect_err("refused");
            assert_eq!(refusal.condition, condition("com.microsoft:argument-out-of-range"));
            let text = "The specified partition is invalid for an EventHub partition sender or receiver. It should be \
                        between 0 and 1.";
            assert_eq!(refusal.description.as_deref(), Some(text));
        }
    }

    #[test]
    fn only_cbs_is_open_without_a_token() {
        let namespace = namespace();
        assert!(purpose(&namespace, &sending_to("$cbs"), false).is_ok());
        for attach in
            [sending_to("hub"), sending_to("$management"), receiving_from("hub/ConsumerGroups/other/Partitions/0")]
        {
            let refusal = purpose(&namespace, &attach, false).expect_err("no token yet");
            assert_eq!(refusal.condition, AmqpError::UnauthorizedAccess.into());
        }
    }

    #[test]
    fn receiver_has_a_start_and_an_epoch() {
        let mut attach = receiving_from("hub/ConsumerGroups/other/Partitions/0");
        let set_filter = |attach: &mut Attach, value: Value| {
            let source = attach.source.as_mut().expect("a source");
            source.filter.get_or_insert_default().insert(Symbol::from("apache.org:selector-filter:string"), value);
        };
        attach.properties = Some(Fields::default());
        attach.properties.as_mut().expect("set").insert(Symbol::from("com.microsoft:epoch"), Value::Long(7));
        set_filter(&mut attach, Value::String("amqp.annotation.x-opt-offset > '@latest'".into()));
        assert!(matches!(
            purpose(&namespace(), &attach, true),
            Ok(Purpose::Consume(Consume { epoch: Some(7), selector: Selector::Latest { inclusive: false }, .. }))
        ));

        for unknown in [Value::String("color = 'red'".into()), Value::Long(1)] {
            set_filter(&mut attach, unknown);
            assert_eq!(refusal(&attach), AmqpError::InvalidField.into());
        }
    }
}
