//! Holds frames of a link back until the engine has attached it.
//!
//! A client may detach a link that it has just begun to attach, for example because the task that waits for it was
//! canceled. The service closes the link. The AMQP library here does not know the link yet: it would forget the detach,
//! and end the whole session with `amqp:session:unattached-handle` because of a flow.

use std::collections::HashMap;

use fe2o3_amqp_types::performatives::{Attach, Performative};

/// The links of a connection that the client has begun to attach.
#[derive(Debug, Default)]
pub(super) struct Attaching {
    /// Their names, by the client's channels and handles.
    unattached: HashMap<(u16, u32), String>,
    /// The frames that are held back, in their order, by the client's channels. The first one is of such a link. Those
    /// that follow in its session wait too, because their order may matter.
    held: HashMap<u16, Vec<u8>>,
    /// The client's channel for each channel of the engine.
    channels: HashMap<u16, u16>,
}

impl Attaching {
    /// Returns whether the client's frame is held back.
    pub(super) fn hold(&mut self, channel: u16, performative: &Performative, frame: &[u8]) -> bool {
        if matches!(performative, Performative::Begin(_) | Performative::End(_)) {
            self.unattached.retain(|(of, _), _| *of != channel);
            self.held.remove(&channel);
            return false;
        }
        if let Some(held) = self.held.get_mut(&channel) {
            held.extend_from_slice(frame);
            return true;
        }
        let Some(handle) = handle(performative) else { return false };
        if self.unattached.contains_key(&(channel, handle)) {
            self.held.insert(channel, frame.to_vec());
            return true;
        }
        if let Performative::Attach(Attach { name, .. }) = performative {
            self.unattached.insert((channel, handle), name.clone());
        }
        false
    }

    /// Records a frame from the engine. Returns the frames of the client that may pass now. They must be offered to
    /// [`hold`](Self::hold) again.
    pub(super) fn release(&mut self, channel: u16, performative: &Performative) -> Vec<u8> {
        match performative {
            Performative::Begin(begin) => {
                self.channels.extend(begin.remote_channel.map(|client| (channel, client)));
                Vec::new()
            }
            Performative::Attach(Attach { name, .. }) => {
                let Some(client) = self.channels.get(&channel) else { return Vec::new() };
                self.unattached.retain(|(of, _), unattached| of != client || unattached != name);
                self.held.remove(client).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the handle of the link that the frame belongs to.
fn handle(performative: &Performative) -> Option<u32> {
    match performative {
        Performative::Attach(attach) => Some(attach.handle.0),
        Performative::Detach(detach) => Some(detach.handle.0),
        Performative::Transfer(transfer) => Some(transfer.handle.0),
        Performative::Flow(flow) => flow.handle.as_ref().map(|handle| handle.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fe2o3_amqp_types::definitions::Role;
    use fe2o3_amqp_types::performatives::End;

    use super::*;
    use crate::samples::{attach, begin_response, detach, flow};

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
        assert!(!attaching.hold(1, &detach(8), b"of another link"));
        assert!(attaching.hold(1, &flow(Some(7)), b"flow "));
        assert!(attaching.hold(1, &detach(7), b"detach "));
        assert!(attaching.hold(1, &named("b", 8), b"attach"), "what follows in the session waits, too");
        assert!(!attaching.hold(2, &detach(7), b"of another session"));

        assert_eq!(attaching.release(6, &named("a", 3)), b"");
        assert_eq!(attaching.release(5, &named("a", 3)), b"flow detach attach");
        assert!(!attaching.hold(1, &detach(7), b"detach"));
    }

    #[test]
    fn nothing_waits_for_a_session_that_has_ended() {
        let mut attaching = begun();
        attaching.hold(1, &named("a", 7), b"attach");
        assert!(attaching.hold(1, &detach(7), b"detach"));
        assert!(!attaching.hold(1, &Performative::End(End { error: None }), b"end"));
        assert!(!attaching.hold(1, &named("a", 7), b"attach"));
    }
}
