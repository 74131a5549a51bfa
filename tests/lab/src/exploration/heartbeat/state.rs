//! The state at one moment.

use super::super::state::Version;

pub(super) const A: u8 = 0;
/// The owner of a released record.
pub(super) const NOBODY: u8 = u8::MAX;
pub(super) const CLAIMERS: usize = 2;
pub(super) const MOST_LATE: usize = 2;

/// What a record says about what keeps it alive, apart from its own age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scope {
    Partition,
    Instance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) owner: u8,
    pub(super) young: bool,
    pub(super) scope: Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Life {
    Valid,
    /// Another instance has declared A dead.
    DeclaredDead,
    /// A has ended it.
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Standing {
    pub(super) young: bool,
    pub(super) life: Life,
}

impl Standing {
    pub(super) fn is_live(self) -> bool {
        self.young && self.life == Life::Valid
    }
}

/// What A does with its heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum HeartbeatWrite {
    Idle,
    /// It writes. If `repeated`, the same write was sent before, and its response may still arrive.
    Write {
        under: Option<Version>,
        repeated: bool,
    },
    /// There is no response yet.
    Waiting {
        under: Option<Version>,
    },
    Read,
    /// It ends the heartbeat by a write.
    End(Version),
    ReadEnd,
    /// It deletes the heartbeat that has ended.
    Delete(Version),
}

/// A write of the record, in which scope, and whether A's heartbeat was valid when it was sent and ever since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rewriting {
    No,
    Owed,
    Write { under: Version, to: Scope, counts: bool },
    Read { attempted: Version, to: Scope, counts: bool },
}

/// The lease of A, as it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) version: Version,
    /// The scope of the record, by the last response.
    pub(super) scope: Scope,
    /// Another instance may have taken it over while A had no valid heartbeat.
    pub(super) doubted: bool,
    /// A write with [`Scope::Partition`] was sent, after which no heartbeat counts.
    pub(super) frozen: bool,
}

impl Held {
    /// Whether A relies on its heartbeat for it, once that is valid.
    pub(super) fn counts_on_the_heartbeat(self) -> bool {
        self.scope == Scope::Instance && !self.doubted && !self.frozen
    }
}

/// A, from its own view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Owner {
    /// The version of its last successful heartbeat.
    pub(super) known: Option<Version>,
    pub(super) heartbeat_write: HeartbeatWrite,
    /// It has sent a heartbeat since it was last declared dead, or ended its heartbeat.
    pub(super) present: bool,
    /// The scope that its records must have: it falls back to [`Scope::Partition`] while its heartbeat cannot be
    /// written.
    pub(super) scope: Scope,
    pub(super) lease: Option<Held>,
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
    Ended,
    /// The deletion of an ended heartbeat. If `always`, under no condition.
    Deleted {
        always: bool,
    },
    OwnedBy(u8, Scope),
}

impl Content {
    fn is_of_record(self) -> bool {
        matches!(self, Self::OwnedBy(..))
    }
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
    /// How many times A may end its heartbeat.
    pub(super) ends: u8,
    /// How many times A may be late with it.
    pub(super) fallbacks: u8,
}

impl State {
    pub(super) fn canonical(mut self) -> Self {
        self.late.sort_unstable();
        self
    }

    pub(super) fn heartbeat_changed(&mut self, to: Option<Standing>) {
        self.heartbeat = to;
        pass(&mut self.owner.known);
        match &mut self.owner.heartbeat_write {
            HeartbeatWrite::Write { under, .. } | HeartbeatWrite::Waiting { under } => pass(under),
            HeartbeatWrite::End(under) | HeartbeatWrite::Delete(under) => *under = Version::Past,
            HeartbeatWrite::Idle | HeartbeatWrite::Read | HeartbeatWrite::ReadEnd => {}
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
        let always = Content::Deleted { always: true };
        self.forget_late(|write| {
            !write.content.is_of_record() && write.content != always && (write.under.is_some() || exists)
        });
    }

    pub(super) fn record_changed(&mut self, to: Record) {
        self.record = to;
        if let Some(held) = &mut self.owner.lease {
            held.version = Version::Past;
        }
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
        self.forget_late(|write| write.content.is_of_record());
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
        let exists = write.content.is_of_record() || self.heartbeat.is_some();
        let holds = match write.under {
            _ if write.content == Content::Deleted { always: true } => exists,
            None => !exists,
            Some(version) => exists && version == Version::Current,
        };
        holds.then(|| self.overwritten(write.content))
    }

    pub(super) fn overwritten(&self, content: Content) -> Self {
        let mut next = *self;
        let standing = |life| Some(Standing { young: true, life });
        match content {
            Content::KeptAlive => next.heartbeat_changed(standing(Life::Valid)),
            Content::DeclaredDead => next.heartbeat_changed(standing(Life::DeclaredDead)),
            Content::Ended => next.heartbeat_changed(standing(Life::Ended)),
            Content::Deleted { .. } => next.heartbeat_changed(None),
            Content::OwnedBy(owner, scope) => next.record_changed(Record { owner, young: true, scope }),
        }
        next
    }
}

fn pass(version: &mut Option<Version>) {
    if version.is_some() {
        *version = Some(Version::Past);
    }
}
