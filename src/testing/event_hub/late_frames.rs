//! What comes too late between a client and the AMQP engine, and is kept from who would stumble over it.
//!
//! The JavaScript client may end a session while events are on their way to it, and then still settles them; the Python
//! client ends a session before it detaches its links. Both get along with the service so. The AMQP library here would
//! close the whole connection with `amqp:not-found`.
//!
//! And the library answers the detach of a link at once, though events of that link wait to be sent, and sends them
//! after its answer, which AMQP forbids: the JavaScript client closes the connection upon it, the Rust client the
//! session. Where the client has attached another link meanwhile, that one gets the handle, and its client the events.
//! In a session they are sent in their order, so as many as the task of the former link has handed over are kept back
//! first.
//!
//! Where the connection ends so, the JavaScript client, if it is closing, waits for ever.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fe2o3_amqp_types::performatives::{Attach, Performative, Transfer};

use super::frames::Fate;
use super::served::Served;

/// What is over on a connection.
#[derive(Default)]
pub(super) struct Over {
    /// The sessions that the client has ended, by its channels.
    sessions: HashSet<u16>,
    served: Arc<Served>,
    /// The names of the client's links, by its channels and handles.
    names: HashMap<(u16, u32), String>,
    /// By the engine's channels and handles.
    links: HashMap<(u16, u32), Link>,
    /// The client's channel of each of the engine's.
    channels: HashMap<u16, u16>,
    /// How many transfers were kept from the client in a session, by its channel.
    kept_back: HashMap<u16, u32>,
}

/// What the engine sends under one of its handles.
#[derive(Default)]
struct Link {
    /// Events are sent over it.
    id: Option<u64>,
    detached: bool,
    /// How many events of it were seen.
    seen: u64,
    /// So many events of former links with its handle are still to come.
    late: u64,
}

impl Link {
    /// The link before is over. What its task has handed over and was not seen is still to come.
    fn after(former: Option<Self>, id: Option<u64>, served: &Served) -> Self {
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
            return Fate::KeptBack;
        }
        self.seen += last;
        if self.detached { Fate::KeptBack } else { Fate::Passed }
    }
}

impl Over {
    pub(super) fn new(served: Arc<Served>) -> Self {
        Self { served, ..Self::default() }
    }

    /// Of what comes from the client.
    pub(super) fn judge_client(&mut self, channel: u16, performative: &mut Performative) -> Fate {
        match performative {
            // Belong to the connection.
            Performative::Open(_) | Performative::Close(_) => return Fate::Passed,
            Performative::Begin(_) => {
                self.sessions.remove(&channel);
                self.kept_back.remove(&channel);
                self.names.retain(|(of, _), _| *of != channel);
            }
            _ if self.sessions.contains(&channel) => return Fate::KeptBack,
            Performative::End(_) => {
                self.sessions.insert(channel);
            }
            Performative::Attach(Attach { handle, name, .. }) => {
                self.names.insert((channel, handle.0), name.clone());
            }
            Performative::Detach(detach) => {
                if let Some(name) = self.names.remove(&(channel, detach.handle.0)) {
                    self.served.detached(&name);
                }
            }
            Performative::Flow(flow) => return self.catch_up(channel, flow.next_incoming_id.as_mut()),
            _ => {}
        }
        Fate::Passed
    }

    /// Both sides count transfers, and the engine takes what the session's window has room for from the client's count.
    /// The client has not counted those that were kept back: the window would shrink for good.
    fn catch_up(&self, channel: u16, next_incoming_id: Option<&mut u32>) -> Fate {
        match (self.kept_back.get(&channel), next_incoming_id) {
            (Some(missed), Some(next)) => {
                *next = next.wrapping_add(*missed);
                Fate::Rewritten
            }
            _ => Fate::Passed,
        }
    }

    /// Of what comes from the engine.
    pub(super) fn judge_engine(&mut self, channel: u16, performative: &mut Performative) -> Fate {
        match performative {
            Performative::Begin(begin) => {
                self.channels.extend(begin.remote_channel.map(|client| (channel, client)));
                self.links.retain(|(of, _), _| *of != channel);
            }
            Performative::Attach(Attach { handle, name, .. }) => {
                let key = (channel, handle.0);
                let link = Link::after(self.links.remove(&key), self.served.id_of(name), &self.served);
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
        if fate == Fate::KeptBack
            && let Some(client) = self.channels.get(&channel)
        {
            *self.kept_back.entry(*client).or_default() += 1;
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use super::Fate::{KeptBack, Passed, Rewritten};
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

    /// With the first of its fields, encoded.
    fn said(performative: u8, fields: &[&[u8]]) -> Performative {
        let (encoded, count) = (fields.concat(), u8::try_from(fields.len()).expect("few"));
        let size = u8::try_from(encoded.len() + 1).expect("short");
        let bytes = [&[0, 0x53, performative, 0xc0, size, count], encoded.as_slice()].concat();
        serde_amqp::from_slice(&bytes).expect("a performative")
    }

    fn begin() -> Performative {
        said(BEGIN, &[NULL, ZERO, ZERO, ZERO])
    }

    fn settle() -> Performative {
        said(DISPOSITION, &[TRUE, ZERO])
    }

    fn end() -> Performative {
        said(END, &[])
    }

    fn flow(next_incoming_id: u8) -> Performative {
        said(FLOW, &[&[0x52, next_incoming_id], ZERO, ZERO, ZERO])
    }

    fn answered_begin(client_channel: u8) -> Performative {
        said(BEGIN, &[&[0x60, 0, client_channel], ZERO, ZERO, ZERO])
    }

    fn attach(handle: u8) -> Performative {
        said(ATTACH, &[&[0xa1, 1, b'n'], &[0x52, handle], FALSE])
    }

    fn transfer(handle: u8) -> Performative {
        said(TRANSFER, &[&[0x52, handle]])
    }

    fn detach(handle: u8) -> Performative {
        said(DETACH, &[&[0x52, handle], TRUE])
    }

    #[test]
    fn what_a_client_sends_in_a_session_that_it_has_ended_is_kept_back_and_nothing_else() {
        let mut over = Over::default();
        let sent = [
            (0, begin(), Passed),
            (1, begin(), Passed),
            (1, settle(), Passed),
            (1, end(), Passed),
            (1, settle(), KeptBack),
            (1, end(), KeptBack),
            (0, settle(), Passed),
            (1, begin(), Passed),
            (1, settle(), Passed),
            (0, end(), Passed),
            (0, said(CLOSE, &[]), Passed),
        ];
        for (at, (channel, mut performative, fate)) in sent.into_iter().enumerate() {
            assert_eq!(over.judge_client(channel, &mut performative), fate, "{at}");
        }
    }

    #[test]
    fn what_the_engine_sends_over_a_link_that_it_has_detached_is_kept_back_and_nothing_else() {
        let mut over = Over::default();
        let sent = [
            (1, answered_begin(1), Passed),
            (1, attach(0), Passed),
            (1, attach(7), Passed),
            (1, transfer(7), Passed),
            (1, detach(7), Passed),
            (1, transfer(7), KeptBack),
            (1, transfer(0), Passed),
            (2, transfer(7), Passed),
            (1, attach(7), Passed),
            (1, transfer(7), Passed),
            (1, end(), Passed),
        ];
        for (at, (channel, mut performative, fate)) in sent.into_iter().enumerate() {
            assert_eq!(over.judge_engine(channel, &mut performative), fate, "{at}");
        }
    }

    /// The handle goes to the next link while events of the former one wait for room in the session's window.
    #[test]
    fn b02_events_of_the_former_link_with_a_handle_are_kept_back() {
        let served = Arc::new(Served::default());
        let mut over = Over::new(Arc::clone(&served));
        over.judge_engine(1, &mut answered_begin(1));
        let former = served.begin("n");
        (0..3).for_each(|_| former.count());
        for (mut performative, fate) in [(attach(7), Passed), (transfer(7), Passed), (detach(7), Passed)] {
            assert_eq!(over.judge_engine(1, &mut performative), fate);
        }
        drop(former);
        let _next = served.begin("n");
        let sent = [(attach(7), Passed), (transfer(7), KeptBack), (transfer(7), KeptBack), (transfer(7), Passed)];
        for (at, (mut performative, fate)) in sent.into_iter().enumerate() {
            assert_eq!(over.judge_engine(1, &mut performative), fate, "{at}");
        }
    }

    #[test]
    fn a_client_is_taken_for_having_received_what_was_kept_from_it() {
        let mut over = Over::default();
        for mut performative in [answered_begin(5), attach(0), detach(0), transfer(0), transfer(0)] {
            over.judge_engine(1, &mut performative);
        }
        let mut told = flow(3);
        assert_eq!(over.judge_client(5, &mut told), Rewritten);
        assert_eq!(told, flow(5));
        assert_eq!(over.judge_client(1, &mut flow(3)), Passed, "of another session");
        over.judge_client(5, &mut begin());
        assert_eq!(over.judge_client(5, &mut flow(3)), Passed, "of a new session");
    }
}
