//! The moves in `docs/moving-a-group.md`, step by step: a running group of another SDK moves to this crate under load,
//! and back. Each step is measured, and with `--nocapture` the tables are printed.
//!
//! The environment sets the size: `MOVE_INSTANCES`, `MOVE_PARTITIONS` and `MOVE_LEASE_SECONDS`.

use std::env;
use std::fmt;
use std::time::Duration;

use eventhubs_checkpoint::store::NameCase;
use tokio::time::Instant;

use crate::continuity::{Continuity, Observed};
use crate::crate_processor::CrateProcessor;
use crate::fleet::{EXPIRY, Fleet, TIMEOUT};
use crate::foreign_processor::ForeignProcessor;
use crate::program::Program;
use crate::sdk::Sdk;

/// The next owner finds and takes a partition within this time, on a busy machine. It includes the start of programs.
const TAKEOVER: Duration = Duration::from_secs(60);

/// A client can lose a link without an error. Lag checks, of which there are two per minute, find that within this
/// time.
const LOST_LINK: Duration = Duration::from_secs(120);

/// A group that moves.
struct Move {
    sdk: Sdk,
    fleet: Fleet,
    program: Program,
    steps: Vec<Step>,
    events: i64,
    repeated: usize,
}

/// What a step of the move has cost.
struct Step {
    what: String,
    events: i64,
    repeated: usize,
    observed: Observed,
}

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is {value}, not a number")))
}

impl Move {
    async fn new(sdk: Sdk, case: NameCase) -> Self {
        let mut fleet = Fleet::new(u16::try_from(setting("MOVE_PARTITIONS", 4)).unwrap()).await;
        fleet.case = case;
        fleet.expiry = Duration::from_secs(setting("MOVE_LEASE_SECONDS", EXPIRY.as_secs()));
        let program = Program::for_fleet(&fleet).await;
        Self { sdk, fleet, program, steps: Vec::new(), events: 0, repeated: 0 }
    }

    /// Starts the group as it is before and after the move.
    async fn start_old(&self) -> Vec<ForeignProcessor> {
        let mut old = Vec::new();
        for _ in 0..setting("MOVE_INSTANCES", 2) {
            old.push(self.fleet.foreign(self.sdk).await);
        }
        self.settle(&[], &old).await;
        old
    }

    /// What happened until now does not belong to a step.
    fn begin(&mut self) {
        (self.events, self.repeated) = (self.published(), self.fleet.processed.repeated().0);
    }

    fn published(&self) -> i64 {
        self.fleet.published().values().map(|last| last + 1).sum()
    }

    async fn settle(&self, new: &[CrateProcessor], old: &[ForeignProcessor]) {
        let old = old.iter().map(ForeignProcessor::owner);
        let owners: Vec<_> = new.iter().map(CrateProcessor::owner).chain(old).collect();
        self.fleet.settles_among(&owners).await;
    }

    /// Runs the program as the recipe says, with names in this casing.
    async fn ehcp(&self, case: NameCase, arguments: &[&str]) {
        let case = case.to_string();
        self.program.run(&[&["--blob-name-case", &case], arguments].concat()).await.ended(0);
    }

    /// Deletes ownerships without an owner until there are none: the Rust SDK considers them owned.
    async fn delete_released(&self, case: NameCase) {
        let started = Instant::now();
        loop {
            assert!(started.elapsed() < TIMEOUT, "ownerships are released again and again");
            let records = self.fleet.records_in(case).await.into_iter();
            let released: Vec<_> = records.filter(|(_, (owner, _))| owner.is_empty()).map(|(id, _)| id).collect();
            if released.is_empty() {
                return;
            }
            // It fails if an instance has claimed one of them meanwhile.
            let case = case.to_string();
            let arguments =
                ["--blob-name-case", &case, "delete", "--ownerships", "-p", &released.join(","), "--execute"];
            self.program.run(&arguments).await;
        }
    }

    fn observe(&self) -> Continuity {
        Continuity::of(&self.fleet)
    }

    /// Ends a step.
    async fn done(&mut self, what: impl Into<String>, step: Continuity) {
        let (what, observed) = (what.into(), step.observed().await);
        let events = self.published();
        let (repeated, by_checkpoints) = self.fleet.processed.repeated();
        assert_eq!(repeated, by_checkpoints, "{what}: an instance has not read on after the checkpoint");
        assert!(observed.owned_twice.is_empty(), "{what}: two owners: {observed:?}");
        assert!(observed.unowned <= TAKEOVER, "{what}: {observed:?}");
        assert!(observed.unread <= self.fleet.expiry + TAKEOVER + LOST_LINK, "{what}: {observed:?}");
        self.steps.push(Step { what, events: events - self.events, repeated: repeated - self.repeated, observed });
        (self.events, self.repeated) = (events, repeated);
    }

    /// Ends the move. No event may be lost. The last checkpoints do not matter: an instance of another SDK that has
    /// lost a partition can replace a newer checkpoint by its own.
    async fn end(mut self) {
        self.fleet.stops_publishing().await;
        for (partition, last) in self.fleet.published() {
            self.fleet.processes_range(&partition, 0, last).await;
        }
        let (repeated, by_checkpoints) = self.fleet.processed.repeated();
        assert_eq!(repeated, by_checkpoints);
        println!("{self}");
    }

    /// Replaces each old instance by one of this crate, which joins before the old one ends.
    async fn replace(&mut self, mut old: Vec<ForeignProcessor>) -> Vec<CrateProcessor> {
        let mut new = Vec::new();
        while let Some(instance) = old.pop() {
            let name = format!("new-{}", new.len());
            let joining = self.observe();
            new.push(self.fleet.own(&name).await);
            old.push(instance);
            self.settle(&new, &old).await;
            self.done(format!("{name} joins"), joining).await;

            let instance = old.pop().unwrap();
            let ending = self.observe();
            let how = self.end_old(instance, old.is_empty()).await;
            self.settle(&new, &old).await;
            self.done(how, ending).await;
        }
        new
    }

    /// Ends an old instance. The last one is killed, and nothing is done about its partitions.
    async fn end_old(&self, instance: ForeignProcessor, is_last: bool) -> String {
        if is_last {
            instance.kill().await;
            return "old one killed".into();
        }
        let owner = instance.owner().to_owned();
        instance.shut_down().await;
        if self.sdk != Sdk::Rust {
            return "old one stopped".into();
        }
        self.ehcp(self.fleet.case, &["release", "--owner", &owner, "--live", "--force", "--execute"]).await;
        self.delete_released(self.fleet.case).await;
        "old one stopped, `ehcp release`, `ehcp delete`".into()
    }

    /// Replaces each new instance by an old one, which joins before the new one ends.
    async fn replace_back(&mut self, mut new: Vec<CrateProcessor>) -> Vec<ForeignProcessor> {
        let mut old = Vec::new();
        while !new.is_empty() {
            let joining = self.observe();
            old.push(self.fleet.foreign(self.sdk).await);
            self.settle(&new, &old).await;
            self.done("back: old one joins", joining).await;

            let ending = self.observe();
            new.pop().unwrap().shut_down().await;
            let mut how = "back: new one stopped".to_owned();
            if self.sdk == Sdk::Rust {
                self.delete_released(self.fleet.case).await;
                how += ", `ehcp delete`";
            }
            self.settle(&new, &old).await;
            self.done(how, ending).await;
        }
        old
    }
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sdk, expiry) = (self.sdk, self.fleet.expiry);
        let partitions = self.fleet.hub.partition_ids().len();
        writeln!(f, "{sdk:?}, {} names, {partitions} partitions, leases of {expiry:?}", self.fleet.case)?;
        writeln!(f, "| step | events published | lost | repeated | unread for at most |")?;
        writeln!(f, "|---|--:|--:|--:|--:|")?;
        for Step { what, events, repeated, observed } in &self.steps {
            writeln!(f, "| {what} | {events} | 0 | {repeated} | {:.1} s |", observed.unread.as_secs_f64())?;
        }
        Ok(())
    }
}

/// The recipe for SDKs with the same names: both kinds of instances share the partitions for as long as the move takes.
async fn shares_the_names(sdk: Sdk, case: NameCase) {
    if !sdk.is_here() {
        return;
    }
    let mut moving = Move::new(sdk, case).await;
    let old = moving.start_old().await;
    moving.begin();
    let new = moving.replace(old).await;
    let old = moving.replace_back(new).await;
    moving.end().await;
    drop(old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn javascript() {
    shares_the_names(Sdk::JavaScript, NameCase::Lower).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python() {
    shares_the_names(Sdk::Python, NameCase::Lower).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java() {
    shares_the_names(Sdk::Java, NameCase::Lower).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go() {
    shares_the_names(Sdk::Go, NameCase::Verbatim).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_with_shared_names() {
    shares_the_names(Sdk::Rust, NameCase::Verbatim).await;
}

/// The recipe for a change of the blob-name casing: the old instances end, `ehcp copy`, and the new ones start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rust_with_new_names() {
    if !Sdk::Rust.is_here() {
        return;
    }
    let mut moving = Move::new(Sdk::Rust, NameCase::Lower).await;
    moving.fleet.case = NameCase::Verbatim;
    let old = moving.start_old().await;
    moving.begin();
    let step = moving.observe();
    let owners: Vec<_> = old.iter().map(|instance| instance.owner().to_owned()).collect();
    for instance in old {
        instance.kill().await;
    }
    for owner in &owners {
        let release = ["release", "--owner", owner, "--live", "--force", "--execute"];
        moving.ehcp(NameCase::Verbatim, &release).await;
    }
    moving.ehcp(NameCase::Verbatim, &["copy", "--to-case", "lower", "--execute"]).await;
    moving.fleet.case = NameCase::Lower;
    let new = [moving.fleet.own("new-0").await, moving.fleet.own("new-1").await];
    moving.settle(&new, &[]).await;
    moving.done("old ones killed, `ehcp release`, `ehcp copy`, new ones started", step).await;

    let step = moving.observe();
    for instance in new {
        instance.shut_down().await;
    }
    moving.ehcp(NameCase::Lower, &["copy", "--to-case", "verbatim", "--overwrite", "--execute"]).await;
    moving.delete_released(NameCase::Verbatim).await;
    moving.fleet.case = NameCase::Verbatim;
    let old = moving.start_old().await;
    moving.done("back: new ones stopped, `ehcp copy`, old ones started", step).await;
    moving.end().await;
    drop(old);
}
