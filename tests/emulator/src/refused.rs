//! Gives refused links the form of the service.
//!
//! The AMQP library accepts a link before it can close it with an error. The service answers with an attach that has
//! neither source nor target, and with the detach; it sends no flow (Azure/azure-event-hubs-node#186,
//! Azure/iothub-explorer#57).

use std::collections::HashSet;

use fe2o3_amqp_types::definitions::Fields;
use fe2o3_amqp_types::performatives::{Attach, Performative};
use fe2o3_amqp_types::primitives::{Symbol, Value};

use super::frames::Fate;
use super::message::product;

/// The property by which the filter recognizes a refused link. Clients do not see it.
const MARK: &str = "event-hub-emulator:refused";

/// Returns the properties of a refused link.
pub(super) fn marked() -> Fields {
    let mut properties = product();
    properties.insert(Symbol::from(MARK), Value::Bool(true));
    properties
}

/// The refused links that the engine has not detached yet, by its channels and handles.
#[derive(Debug, Default)]
pub(super) struct Refused(HashSet<(u16, u32)>);

impl Refused {
    /// Decides the fate of a frame from the engine.
    pub(super) fn judge_engine(&mut self, channel: u16, performative: &mut Performative) -> Fate {
        match performative {
            Performative::Attach(attach) if is_marked(attach) => {
                self.0.insert((channel, attach.handle.0));
                clear(attach);
                Fate::Rewritten
            }
            Performative::Flow(flow) => match &flow.handle {
                Some(handle) if self.0.contains(&(channel, handle.0)) => Fate::Dropped,
                _ => Fate::Passed,
            },
            Performative::Detach(detach) => {
                self.0.remove(&(channel, detach.handle.0));
                Fate::Passed
            }
            _ => Fate::Passed,
        }
    }
}

fn is_marked(attach: &Attach) -> bool {
    attach.properties.as_ref().is_some_and(|properties| properties.contains_key(&Symbol::from(MARK)))
}

fn clear(attach: &mut Attach) {
    attach.source = None;
    attach.target = None;
    attach.unsettled = None;
    attach.initial_delivery_count = None;
    attach.max_message_size = None;
    attach.offered_capabilities = None;
    attach.desired_capabilities = None;
    // Not null, because of the clients that read the fields by position: see `product`.
    attach.properties = Some(product());
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::Role;

    use super::*;
    use crate::samples::{attach, detach, flow};

    fn attach_with(properties: Fields) -> Performative {
        let attach = attach(Role::Sender, "hub", "client");
        Performative::Attach(Attach { initial_delivery_count: Some(0), properties: Some(properties), ..attach })
    }

    #[test]
    fn a_refused_link_has_no_source_and_no_flow() {
        let mut refused = Refused::default();
        let mut sent = attach_with(marked());
        assert_eq!(refused.judge_engine(1, &mut sent), Fate::Rewritten);
        let Performative::Attach(sent) = sent else { panic!("an attach") };
        assert_eq!((sent.source, sent.initial_delivery_count, sent.properties), (None, None, Some(product())));
        assert_eq!(refused.judge_engine(1, &mut flow(Some(7))), Fate::Dropped);
        assert_eq!(refused.judge_engine(2, &mut flow(Some(7))), Fate::Passed);
        assert_eq!(refused.judge_engine(1, &mut detach(7)), Fate::Passed);
        assert_eq!(refused.judge_engine(1, &mut attach_with(product())), Fate::Passed);
        assert_eq!(refused.judge_engine(1, &mut flow(Some(7))), Fate::Passed);
    }
}
