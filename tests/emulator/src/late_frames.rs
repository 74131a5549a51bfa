//! Drops frames that are too late, between a client and the AMQP engine, because the receiver could not handle them.
//!
//! The JavaScript client may end a session while events are in transit to it, and settles them nevertheless. The Python
//! client ends a session before it detaches its links. Both work with the service. The AMQP library here would close
//! the whole connection with `amqp:not-found`.
//!
//! The library also responds to the detach of a link at once, even if events of the link are still queued, and sends
//! these events after its response, which AMQP forbids. The JavaScript client then closes the connection, the Rust
//! client the session. If the client has attached another link in the meantime, that link gets the handle, and its
//! client gets the events. Events of a session are sent in order, so this module drops as many events as the task of
//! the former link had handed over.
//!
//! If the connection ends this way while the JavaScript client is closing it, that client waits forever.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fe2o3_amqp_types::performatives::{Attach, Performative, Transfer};

use super::frames::Fate;
use super::served::Served;

/// The ended sessions and detached links of a connection.
#[derive(Default)]
pub(super) struct LateFrames {
    /// The sessions that the client has ended, by its channels.
    sessions: HashSet<u16>,
    served: Arc<Served>,
    /// The names of the client's links, by the client's channels and handles.
    names: HashMap<(u16, u32), String>,
    /// The engine's links, by its channels and handles.
    links: HashMap<(u16, u32), Link>,
    /// The client's channel for each channel of the engine.
    channels: HashMap<u16, u16>,
    /// The number of transfers dropped in a session, by the client's channel.
    dropped: HashMap<u16, u32>,
}

/// The state of a link under one of the engine's handles.
#[derive(Default)]
struct Link {
    /// The id of the link, if it carries events.
    id: Option<u64>,
    detached: bool,
    /// The number of events seen of this link.
    seen: u64,
    /// The number of events of former links with this handle that are still to come.
    late: u64,
}

impl Link {
    /// Creates the state of a link that replaces `former`. The events that the former task handed over and that were
    /// not seen are still to come.
    fn replacing(former: Option<Self>, id: Option<u64>, served: &Served) -> Self {
        let late = former.map_or(0, |former| {
            let sent = former.id.map_or(0, |id| served.sent(id));
            former.late + sent.saturating_sub(former.seen)
        });
        Self { id, late, ..Self::default() }
    }

    fn judge(&mut self, transfer: &Transfer) -> Fate {
        let last = u64::from(!transfer.more);
        if self.late > 0 {
            self.late -= last;
            return Fate::Dropped;
        }
        self.seen += last;
        if self.detached { Fate::Dropped } else { Fate::Passed }
    }
}

impl LateFrames {
    pub(super) fn new(served: Arc<Served>) -> Self {
        Self { served, ..Self::default() }
    }

    /// Decides the fate of a frame from the client.
    pub(super) fn judge_client(&mut self, channel: u16, performative: &mut Performative) -> Fate {
        match performative {
            // These belong to the connection.
            Performative::Open(_) | Performative::Close(_) => return Fate::Passed,
            Performative::Begin(_) => {
                self.sessions.remove(&channel);
                self.dropped.remove(&channel);
                self.names.retain(|(of, _), _| *of != channel);
            }
            _ if self.sessions.contains(&channel) => return Fate::Dropped,
            Performative::End(_) => {
                self.sessions.insert(channel);
                let ended = self.names.iter().filter(|((of, _), _)| *of == channel);
                ended.for_each(|(_, name)| self.served.detached(name));
            }
            Performative::Attach(Attach { handle, name, .. }) => {
                self.names.insert((channel, handle.0), name.clone());
            }
            Performative::Detach(detach) => {
                if let Some(name) = self.names.remove(&(channel, detach.handle.0)) {
                    self.served.detached(&name);
                }
            }
            Performative::Flow(flow) => return self.correct_count(channel, flow.next_incoming_id.as_mut()),
            _ => {}
        }
        Fate::Passed
    }

    /// Adds the dropped transfers to the client's count. Both sides count transfers, and the engine computes the
    /// session's window from the client's count. The client has not counted the dropped ones, so without a correction
    /// the window would shrink permanently.
    fn correct_count(&self, channel: u16, next_incoming_id: Option<&mut u32>) -> Fate {
        match (self.dropped.get(&channel), next_incoming_id) {
            (Some(missed), Some(next)) => {
                *next = next.wrapping_add(*missed);
                Fate::Rewritten
            }
            _ => Fate::Passed,
        }
    }

    /// Decides the fate of a frame from the engine.
    pub(super) fn judge_engine(&mut self, channel: u16, performative: &mut Performative) -> Fate {
        match performative {
            Performative::Begin(begin) => {
                self.channels.extend(begin.remote_channel.map(|client| (channel, client)));
                self.links.retain(|(of, _), _| *of != channel);
            }
            Performative::Attach(Attach { handle, name, .. }) => {
                let key = (channel, handle.0);
                let link = Link::replacing(self.links.remove(&key), self.served.id_of(name), &self.served);
                self.links.insert(key, link);
            }
            Performative::Detach(detach) => {
                self.links.entry((channel, detach.handle.0)).or_default().detached = true;
            }
            Performative::Transfer(transfer) => return self.judge_transfer(channel, transfer),
            _ => {}
        }
        Fate::Passed
    }

    fn judge_transfer(&mut self, channel: u16, transfer: &Transfer) -> Fate {
        let link = self.links.entry((channel, transfer.handle.0)).or_default();
        let fate = link.judge(transfer);
        if fate == Fate::Dropped
            && let Some(client) = self.channels.get(&channel)
        {
            *self.dropped.entry(*client).or_default() += 1;
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::Fate::{Dropped, Passed, Rewritten};
    use super::*;

    const BEGIN: u8 = 0x11;
    const ATTACH: u8 = 0x12;
    const FLOW: u8 = 0x13;
    const TRANSFER: u8 = 0x14;
    const DISPOSITION: u8 = 0x15;
    const DETACH: u8 = 0x16;
    const END: u8 = 0x17;
    const CLOSE: u8 = 0x18;

    const NULL: &[u8] = &[0x40];
    const TRUE: &[u8] = &[0x41];
    const FALSE: &[u8] = &[0x42];
    const ZERO: &[u8] = &[0x43];

    /// Creates a performative with the given first fields, encoded.
    fn decoded(performative: u8, fields: &[&[u8]]) -> Performative {
        let (encoded, count) = (fields.concat(), u8::try_from(fields.len()).expect("few"));
        let size = u8::try_from(encoded.len() + 1).expect("short");
        let bytes = [&[0, 0x53, performative, 0xc0, size, count], encoded.as_slice()].concat();
        serde_amqp::from_slice(&bytes).expect("a performative")
    }

    fn begin() -> Performative {
        decoded(BEGIN, &[NULL, ZERO, ZERO, ZERO])
    }

    fn settle() -> Performative {
        decoded(DISPOSITION, &[TRUE, ZERO])
    }

    fn end() -> Performative {
        decoded(END, &[])
    }

    fn flow(next_incoming_id: u8) -> Performative {
        decoded(FLOW, &[&[0x52, next_incoming_id], ZERO, ZERO, ZERO])
    }

    fn begin_response(client_channel: u8) -> Performative {
        decoded(BEGIN, &[&[0x60, 0, client_channel], ZERO, ZERO, ZERO])
    }

    fn attach(handle: u8) -> Performative {
        decoded(ATTACH, &[&[0xa1, 1, b'n'], &[0x52, handle], FALSE])
    }

    fn transfer(handle: u8) -> Performative {
        decoded(TRANSFER, &[&[0x52, handle]])
    }

    fn detach(handle: u8) -> Performative {
        decoded(DETACH, &[&[0x52, handle], TRUE])
    }

    /// Only frames that a client sends in a session that it has ended are dropped.
    #[test]
    fn client_frames_of_ended_sessions_are_dropped() {
        let mut late_frames = LateFrames::default();
        let sent = [
            (0, begin(), Passed),
            (1, begin(), Passed),
            (1, settle(), Passed),
            (1, end(), Passed),
            (1, settle(), Dropped),
            (1, end(), Dropped),
            (0, settle(), Passed),
            (1, begin(), Passed),
            (1, settle(), Passed),
            (0, end(), Passed),
            (0, decoded(CLOSE, &[]), Passed),
        ];
        for (at, (channel, mut performative, fate)) in sent.into_iter().enumerate() {
            assert_eq!(late_frames.judge_client(channel, &mut performative), fate, "{at}");
        }
    }

    /// Only transfers that the engine sends over a link that it has detached are dropped.
    #[test]
    fn engine_transfers_of_detached_links_are_dropped() {
        let mut late_frames = LateFrames::default();
        let sent = [
            (1, begin_response(1), Passed),
            (1, attach(0), Passed),
            (1, attach(7), Passed),
            (1, transfer(7), Passed),
            (1, detach(7), Passed),
            (1, transfer(7), Dropped),
            (1, transfer(0), Passed),
            (2, transfer(7), Passed),
            (1, attach(7), Passed),
            (1, transfer(7), Passed),
            (1, end(), Passed),
        ];
        for (at, (channel, mut performative, fate)) in sent.into_iter().enumerate() {
            assert_eq!(late_frames.judge_engine(channel, &mut performative), fate, "{at}");
        }
    }

    /// The next link gets the handle while events of the former link wait for the session's window.
    #[test]
    fn events_of_the_former_link_are_dropped() {
        let served = Arc::new(Served::default());
        let mut late_frames = LateFrames::new(Arc::clone(&served));
        late_frames.judge_engine(1, &mut begin_response(1));
        let former = served.begin("n");
        (0..3).for_each(|_| former.count());
        for (mut performative, fate) in [(attach(7), Passed), (transfer(7), Passed), (detach(7), Passed)] {
            assert_eq!(late_frames.judge_engine(1, &mut performative), fate);
        }
        drop(former);
        let _next = served.begin("n");
        let sent = [(attach(7), Passed), (transfer(7), Dropped), (transfer(7), Dropped), (transfer(7), Passed)];
        for (at, (mut performative, fate)) in sent.into_iter().enumerate() {
            assert_eq!(late_frames.judge_engine(1, &mut performative), fate, "{at}");
        }
    }

    #[test]
    fn dropped_transfers_are_added_to_the_client_count() {
        let mut late_frames = LateFrames::default();
        for mut performative in [begin_response(5), attach(0), detach(0), transfer(0), transfer(0)] {
            late_frames.judge_engine(1, &mut performative);
        }
        let mut sent = flow(3);
        assert_eq!(late_frames.judge_client(5, &mut sent), Rewritten);
        assert_eq!(sent, flow(5));
        assert_eq!(late_frames.judge_client(1, &mut flow(3)), Passed, "of another session");
        late_frames.judge_client(5, &mut begin());
        assert_eq!(late_frames.judge_client(5, &mut flow(3)), Passed, "of a new session");
    }
}
