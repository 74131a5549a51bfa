//! Holds frames of a link back until the engine has attached it.
//!
//! A client may detach a link that it has just begun to attach, for example because the task that waits for it was
//! canceled. The service closes the link. The AMQP library here does not know the link yet, and would end the whole
//! session with `amqp:session:unattached-handle`.

use std::collections::HashMap;

use fe2o3_amqp_types::performatives::{Attach, Performative};

/// The links of a connection that the client has begun to attach.
#[derive(Debug, Default)]
pub(super) struct Attaching {
    /// By the client's channels and handles.
    waiting: HashMap<(u16, u32), Waiting>,
    /// The client's channel for each channel of the engine.
    channels: HashMap<u16, u16>,
}

#[derive(Debug)]
struct Waiting {
    name: String,
    /// The frames that follow, in their order.
    held: Vec<u8>,
}

impl Attaching {
    /// Returns whether the frame is held back, because its link is not attached yet.
    pub(super) fn hold(&mut self, channel: u16, performative: &Performative, frame: &[u8]) -> bool {
        let handle = match performative {
            Performative::Attach(attach) => attach.handle.0,
            Performative::Detach(detach) => detach.handle.0,
            Performative::Transfer(transfer) => transfer.handle.0,
            Performative::Flow(flow) => match &flow.handle {
                Some(handle) => handle.0,
                None => return false,
            },
            Performative::Begin(_) | Performative::End(_) => {
                self.waiting.retain(|(of, _), _| *of != channel);
                return false;
            }
            _ => return false,
        };
        if let Some(waiting) = self.waiting.get_mut(&(channel, handle)) {
            waiting.held.extend_from_slice(frame);
            return true;
        }
        if let Performative::Attach(Attach { name, .. }) = performative {
            self.waiting.insert((channel, handle), Waiting { name: name.clone(), held: Vec::new() });
        }
        false
    }

    /// Records a frame from the engine. Returns the frames of the client that may pass now.
    pub(super) fn release(&mut self, channel: u16, performative: &Performative) -> Vec<u8> {
        match performative {
            Performative::Begin(begin) => {
                self.channels.extend(begin.remote_channel.map(|client| (channel, client)));
            }
            Performative::Attach(Attach { name, .. }) => {
                let client = self.channels.get(&channel).copied();
                let attached = self.waiting.iter().find(|((of, _), it)| Some(*of) == client && it.name == *name);
                if let Some(link) = attached.map(|(link, _)| *link) {
                    return self.waiting.remove(&link).map(|waiting| waiting.held).unwrap_or_default();
                }
            }
            _ => {}
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::Role;
    use fe2o3_amqp_types::performatives::End;

    use super::*;
    use crate::testing::event_hub::samples::{attach, begin_response, detach, flow};

    fn named(name: &str, handle: u32) -> Performative {
        let attach = attach(Role::Receiver, "hub", "client");
        Performative::Attach(Attach { name: name.into(), handle: handle.into(), ..attach })
    }

    /// Returns the state after the engine has begun its channel 5 for the client's channel 1.
    fn begun() -> Attaching {
        let mut attaching = Attaching::default();
        attaching.release(5, &begin_response(1));
        attaching
    }

    #[test]
    fn frames_of_a_link_wait_until_it_is_attached() {
        let mut attaching = begun();
        assert!(!attaching.hold(1, &named("a", 7), b"attach"));
        assert!(attaching.hold(1, &flow(Some(7)), b"flow "));
        assert!(attaching.hold(1, &detach(7), b"detach"));
        assert!(!attaching.hold(1, &detach(8), b"of another link"));
        assert!(!attaching.hold(1, &flow(None), b"of the session"));

        assert_eq!(attaching.release(5, &named("b", 3)), b"");
        assert_eq!(attaching.release(6, &named("a", 3)), b"");
        assert_eq!(attaching.release(5, &named("a", 3)), b"flow detach");
        assert!(!attaching.hold(1, &detach(7), b"detach"));
    }

    #[test]
    fn nothing_waits_for_a_session_that_has_ended() {
        let mut attaching = begun();
        attaching.hold(1, &named("a", 7), b"attach");
        assert!(!attaching.hold(1, &Performative::End(End { error: None }), b"end"));
        assert!(!attaching.hold(1, &named("a", 7), b"attach"));
    }
}
