//! The state at one moment.

use super::super::state::Version;

pub(super) const A: u8 = 0;
pub(super) const CLAIMERS: usize = 2;
pub(super) const MOST_LATE: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) owner: u8,
    pub(super) young: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Standing {
    pub(super) young: bool,
    pub(super) broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HeartbeatWrite {
    Idle,
    Write(Option<Version>),
    Read,
}

/// A write of the record, and whether A's heartbeat was valid when it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rewriting {
    No,
    Owed,
    Write { under: Version, counts: bool },
    Read { attempted: Version, counts: bool },
}

/// A, from its own view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    /// The version of its last successful heartbeat.
    pub(super) known: Option<Version>,
    pub(super) heartbeat_write: HeartbeatWrite,
    /// It has sent a heartbeat since it was last declared dead.
    pub(super) present: bool,
    pub(super) lease: Option<Version>,
    pub(super) doubted: bool,
    pub(super) rewriting: Rewriting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Claimer {
    Idle,
    /// It has listed the ownerships, and lists the heartbeats next.
    Listed {
        record: Version,
    },
    DeclaringDead {
        record: Version,
        stale: Option<Version>,
        under: Option<Version>,
    },
    ReadingHeartbeat {
        record: Version,
        stale: Option<Version>,
    },
    Stealing {
        under: Version,
    },
    ReadingRecord {
        attempted: Version,
    },
    Owns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Content {
    KeptAlive,
    DeclaredDead,
    OwnedBy(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Write {
    pub(super) under: Option<Version>,
    pub(super) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) record: Record,
    pub(super) heartbeat: Option<Standing>,
    pub(super) owner: Owner,
    pub(super) claimers: [Claimer; CLAIMERS],
    pub(super) late: [Option<Write>; MOST_LATE],
    pub(super) faults: u8,
}

impl State {
    pub(super) fn canonical(mut self) -> Self {
        self.late.sort_unstable();
        self
    }

    pub(super) fn heartbeat_changed(&mut self, to: Option<Standing>) {
        self.heartbeat = to;
        pass(&mut self.owner.known);
        if let HeartbeatWrite::Write(under) = &mut self.owner.heartbeat_write {
            pass(under);
        }
        for claimer in &mut self.claimers {
            match claimer {
                Claimer::DeclaringDead { stale, under, .. } => {
                    pass(stale);
                    pass(under);
                }
                Claimer::ReadingHeartbeat { stale, .. } => pass(stale),
                _ => {}
            }
        }
        let exists = to.is_some();
        self.forget_late(|write| !matches!(write.content, Content::OwnedBy(_)) && (write.under.is_some() || exists));
    }

    pub(super) fn record_changed(&mut self, to: Record) {
        self.record = to;
        pass(&mut self.owner.lease);
        if let Rewriting::Write { under: version, .. } | Rewriting::Read { attempted: version, .. } =
            &mut self.owner.rewriting
        {
            *version = Version::Past;
        }
        for claimer in &mut self.claimers {
            if let Claimer::Listed { record: version }
            | Claimer::DeclaringDead { record: version, .. }
            | Claimer::ReadingHeartbeat { record: version, .. }
            | Claimer::Stealing { under: version }
            | Claimer::ReadingRecord { attempted: version } = claimer
            {
                *version = Version::Past;
            }
        }
        self.forget_late(|write| matches!(write.content, Content::OwnedBy(_)));
    }

    pub(super) fn forget_late(&mut self, is_vain: impl Fn(&Write) -> bool) {
        for late in &mut self.late {
            if late.as_ref().is_some_and(&is_vain) {
                *late = None;
            }
        }
    }

    /// Applies a write; returns `None` if its condition does not hold.
    pub(super) fn applied(&self, write: Write) -> Option<Self> {
        let exists = matches!(write.content, Content::OwnedBy(_)) || self.heartbeat.is_some();
        let holds = match write.under {
            None => !exists,
            Some(version) => exists && version == Version::Current,
        };
        holds.then(|| self.overwritten(write.content))
    }

    pub(super) fn overwritten(&self, content: Content) -> Self {
        let mut next = *self;
        match content {
            Content::KeptAlive => next.heartbeat_changed(Some(Standing { young: true, broken: false })),
            Content::DeclaredDead => next.heartbeat_changed(Some(Standing { young: true, broken: true })),
            Content::OwnedBy(owner) => next.record_changed(Record { owner, young: true }),
        }
        next
    }
}

fn pass(version: &mut Option<Version>) {
    if version.is_some() {
        *version = Some(Version::Past);
    }
}
