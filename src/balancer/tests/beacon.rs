//! Reading and lighting the beacon, and watching other owners.

use super::*;
use crate::store::beacon::{Beacon, Lit};

fn beacon(change: i64, age: u64, received: Duration) -> Beacon {
    Beacon { change, version: ETag::new("beacon"), age: Duration::from_secs(age), received }
}

impl Loop {
    /// Creates a loop that owns one of two partitions, in a group with `b`, after several cycles that found nothing
    /// new. The beacon shows change 7.
    fn trusting() -> Self {
        let mut me = Self::owning(BalancerConfig::default(), 1);
        me.has_beacon = true;
        me.step(Happened::Hub([0.into(), 1.into()].into()));
        for _ in 0..6 {
            let mut decided = String::new();
            while !decided.contains("list") {
                decided = me.next();
            }
            me.beacon_shows(7);
            me.renewed(0, 1);
            me.listed("mb");
        }
        me
    }

    /// Wakes the state when it wants to be woken, and lets everything succeed that is not about the beacon's content.
    fn next(&mut self) -> String {
        self.now = self.state.next_wake().unwrap().max(self.now);
        let decided = self.step(Happened::Woke);
        if decided.contains("renew") {
            self.renewed(0, 1);
        }
        if decided.contains("read beacon") {
            self.beacon_shows(7);
        }
        decided
    }

    /// Ends the current read of the beacon with this change.
    fn beacon_shows(&mut self, change: i64) -> String {
        self.done(Done::BeaconRead(Ok(Some(beacon(change, 0, self.now)))))
    }

    /// Does something that others should look at: it releases its partition.
    fn releases_its_partition(&mut self) -> String {
        self.stopped(0, true);
        self.done(Done::Released { partition: 0.into(), outcome: ReleaseOutcome::Released })
    }

    /// Returns what is decided in ten minutes, and after how many seconds, if each listing shows these owners, and the
    /// beacon reads so.
    fn decisions(mut self, owners: &str, answer: impl Fn(&Self) -> Done) -> Vec<(u64, String)> {
        let begin = self.now;
        let mut decisions = Vec::new();
        while self.now < begin + 600 * SECOND {
            self.now = self.state.next_wake().unwrap().max(self.now);
            let decided = self.step(Happened::Woke);
            if decided.contains("renew") {
                self.renewed(0, 1);
            }
            if decided.contains("read beacon") {
                let done = answer(&self);
                if self.done(done).contains("light") {
                    self.done(Done::BeaconLit(Err(unavailable())));
                }
            }
            if decided.contains("light beacon") {
                self.done(Done::BeaconLit(Err(unavailable())));
            }
            if decided.contains("list") {
                self.listed(owners);
            }
            if decided.contains("check b") {
                self.done(Done::OwnerChecked { owner: owner("b"), since_renewal: Ok(Some(3 * SECOND)) });
            }
            decisions.push((self.now.saturating_sub(begin).as_secs(), decided));
        }
        decisions
    }

    /// Returns how many seconds pass until this is decided.
    fn time_until(&mut self, expected: &str) -> u64 {
        let before = self.now;
        loop {
            let decided = self.next();
            if decided.contains(expected) {
                return self.now.saturating_sub(before).as_secs();
            }
            if decided.contains("check b") {
                let since_renewal = Ok(Some(3 * SECOND));
                self.done(Done::OwnerChecked { owner: owner("b"), since_renewal });
            }
        }
    }
}

/// Returns when this was decided.
fn times_of(what: &str, decisions: &[(u64, String)]) -> Vec<u64> {
    decisions.iter().filter(|(_, decided)| decided.contains(what)).map(|(at, _)| *at).collect()
}

#[test]
fn a_group_at_rest_is_hardly_ever_listed() {
    let mut me = Loop::trusting();
    assert!((270..=300).contains(&me.time_until("list")));
}

/// Not all instances at the same time.
#[test]
fn the_beacon_is_read_every_three_seconds() {
    let mut me = Loop::trusting();
    me.time_until("read beacon");
    let waits = [(); 100].map(|()| {
        let before = me.now;
        me.time_until("read beacon");
        me.now.saturating_sub(before)
    });
    let between = |from, to| waits.iter().filter(|wait| (from..to).contains(&wait.as_millis())).count();
    assert_eq!(between(2850, 3150), 100, "{waits:?}");
    assert!(between(2850, 3000) > 20 && between(3000, 3150) > 20, "{waits:?}");
}

#[test]
fn the_beacon_is_read_at_the_start() {
    let mut me = Loop::new(BalancerConfig::default());
    me.has_beacon = true;
    assert!(me.step(Happened::Began([0.into()].into())).contains("read beacon"));
}

#[test]
fn failed_reads_are_repeated_with_growing_waits() {
    let mut me = Loop::trusting();
    me.time_until("read beacon");
    let waits = [(); 4].map(|()| {
        me.done(Done::BeaconRead(Err(unavailable())));
        me.wake_until("read beacon")
    });
    assert!(matches!(waits, [3..=4, 6..=7, 10..=11, 10..=11]), "{waits:?}");
}

/// Two may be an accident.
#[test]
fn three_failed_reads_end_the_trust() {
    for (failures, lists) in [(2, false), (3, true)] {
        let mut me = Loop::trusting();
        for _ in 0..failures {
            me.wake_until("read beacon");
            me.done(Done::BeaconRead(Err(unavailable())));
        }
        while me.now.saturating_sub(me.state.cycles.listing_sent) < 31 * SECOND {
            me.now += SECOND;
        }
        assert_eq!(me.after(0).contains("list"), lists, "{failures}");
    }
}

#[test]
fn a_change_is_listed_at_once() {
    let mut me = Loop::trusting();
    me.time_until("read beacon");
    me.beacon_shows(8);
    assert_eq!(me.time_until("list"), 0);
    me.listed("mb");
    me.beacon_shows(8);
    assert_eq!(me.after(0), "", "the listing covers it");
}

#[test]
fn a_change_during_a_failed_listing_is_listed_again() {
    let mut me = Loop::trusting();
    me.beacon_shows(8);
    assert!(me.time_until("list") <= 1);
    me.done(Done::Listed(Err(unavailable())));
    me.after(4);
    me.done(Done::Listed(Err(unavailable())));
    me.beacon_shows(8);
    assert!(me.after(10).contains("list"));
    me.listed("mb");
    me.beacon_shows(8);
    assert!(!me.after(1).contains("list"));
}

/// It reports its own release, and must not list because of it.
#[test]
fn an_own_change_is_not_listed() {
    let mut me = Loop::trusting();
    me.time_until("read beacon");
    assert!(me.releases_its_partition().contains("light beacon"));
    let lit = Lit { beacon: beacon(9, 0, me.now), replaced: Some(7) };
    me.done(Done::BeaconLit(Ok(Some(lit))));
    me.beacon_shows(9);
    assert!(!me.after(1).contains("list,"), "{:?}", me.state);
}

#[test]
fn a_replaced_change_of_another_is_listed() {
    let mut me = Loop::trusting();
    me.time_until("read beacon");
    me.releases_its_partition();
    let lit = Lit { beacon: beacon(9, 0, me.now), replaced: Some(8) };
    me.done(Done::BeaconLit(Ok(Some(lit))));
    me.beacon_shows(9);
    assert!(me.after(1).contains("list"));
}

/// Missing, of another program, frozen, or not readable.
#[test]
fn without_the_beacon_a_group_is_listed_as_usual() {
    let answers: [fn(&Loop) -> Done; 4] = [
        |_| Done::BeaconRead(Ok(None)),
        |me| Done::BeaconRead(Ok(Some(beacon(0, 1, me.now)))),
        |me| Done::BeaconRead(Ok(Some(beacon(7, 130, me.now)))),
        |_| Done::BeaconRead(Err(unavailable())),
    ];
    for answer in answers {
        let listed = times_of("list", &Loop::trusting().decisions("mb", answer));
        assert!(listed[0] < 120 && listed.windows(2).all(|two| two[1] - two[0] <= 31), "{listed:?}");
    }
}

/// Its processors light no beacon.
#[test]
fn a_group_with_another_sdk_is_listed_as_usual() {
    let mut me = Loop::trusting();
    me.step(Happened::Hub([0.into(), 1.into(), 2.into()].into()));
    let decisions = me.decisions("mb?", |me| Done::BeaconRead(Ok(Some(beacon(7, 0, me.now)))));
    let listed = times_of("list", &decisions);
    assert!(listed[1..].windows(2).all(|two| two[1] - two[0] <= 31), "{listed:?}");
    assert!(listed.len() > 10, "{listed:?}");
    let checked = times_of("check", &decisions);
    assert!(checked.iter().all(|at| *at <= listed[0]), "listings show who is dead: {checked:?}");
}

/// Another program writes it again and again.
#[test]
fn a_beacon_that_never_shows_a_number_is_rarely_lit() {
    let mut me = Loop::trusting();
    let begin = me.now;
    let mut lights = 0;
    while me.now < begin + 600 * SECOND {
        me.now = me.state.next_wake().unwrap().max(me.now);
        let mut decided = me.step(Happened::Woke);
        if decided.contains("renew") {
            me.renewed(0, 1);
        }
        if decided.contains("read beacon") {
            let shown = beacon(0, 1, me.now);
            decided += &me.done(Done::BeaconRead(Ok(Some(shown))));
        }
        if decided.contains("light beacon") {
            lights += 1;
            me.done(Done::BeaconLit(Ok(Some(Lit { beacon: beacon(9, 0, me.now), replaced: Some(0) }))));
        }
        if decided.contains("list") {
            me.listed("mb");
        }
    }
    assert!((10..=20).contains(&lights), "{lights}");
}

#[test]
fn an_owner_that_renews_is_not_listed() {
    let mut me = Loop::trusting();
    assert!((50..=60).contains(&me.time_until("check b")));
    me.done(Done::OwnerChecked { owner: owner("b"), since_renewal: Ok(Some(5 * SECOND)) });
    assert!((54..=55).contains(&me.time_until("check b")));
}

/// It is gone, or silent for so long that a renewal has failed, or the storage does not say.
#[test]
fn an_owner_that_may_be_dead_is_listed() {
    for since_renewal in [Ok(None), Ok(Some(40 * SECOND)), Err(unavailable())] {
        let mut me = Loop::trusting();
        me.time_until("check b");
        me.done(Done::OwnerChecked { owner: owner("b"), since_renewal });
        assert_eq!(me.time_until("list"), 0);
    }
}

#[test]
fn the_first_that_misses_an_owner_tells_the_others() {
    let mut me = Loop::trusting();
    me.time_until("check b");
    me.done(Done::OwnerChecked { owner: owner("b"), since_renewal: Ok(Some(60 * SECOND)) });
    me.after(0);
    let seen = |partition: u32, id: &str, age: u64, now| {
        let time = (datetime!(2026-01-01 00:00:00 UTC), now);
        Ownership::new(partition.into(), record(id), ETag::new("seen"), Duration::from_secs(age), time)
    };
    let listing = vec![seen(0, "me", 0, me.now), seen(1, "b", 60, me.now)];
    assert!(me.done(Done::Listed(Ok(listing))).contains("light beacon"));
}

impl Loop {
    /// Lists two partitions of `dead`, last renewed `ages` seconds ago, one of this instance, and two of live owners.
    /// Returns whether this instance lights the beacon.
    fn lights_after_listing(&mut self, dead: &str, ages: [u64; 2]) -> bool {
        self.time_until("list");
        let live = if dead == "c" { "a" } else { "c" };
        let seen = |(partition, id, age): (u32, &str, u64)| {
            let time = (datetime!(2026-01-01 00:00:00 UTC), self.now);
            Ownership::new(partition.into(), record(id), ETag::new("seen"), Duration::from_secs(age), time)
        };
        let records = [(0, "me", 0), (1, dead, ages[0]), (2, dead, ages[1]), (3, "b", 0), (4, live, 0)];
        let listed = Done::Listed(Ok(records.map(seen).into()));
        let mut decided = self.done(listed);
        if decided.contains("list heartbeats") {
            decided += &self.no_other_heartbeats();
        }
        decided.contains("light beacon")
    }
}

/// All instances list when the first lease of a dead owner expires. If each of them reported that, a large group would
/// light the beacon hundreds of times in a second. Only the instances that watch the owner report it: this instance
/// watches the two owners before it in the order of the ids.
#[test]
fn only_watchers_report_an_expiry_after_a_call() {
    for (dead, reports) in [("z", false), ("c", true)] {
        for ages in [[60, 45], [60, 60]] {
            let mut me = Loop::trusting();
            me.step(Happened::Hub([0.into(), 1.into(), 2.into(), 3.into(), 4.into()].into()));
            me.lights_after_listing(dead, [0, 0]);
            me.time_until("read beacon");
            me.beacon_shows(8);
            assert!(!me.lights_after_listing(dead, ages), "the change of the beacon calls all instances");
            me.beacon_shows(8);
            assert_eq!(me.lights_after_listing(dead, ages.map(|age| age + 3)), reports, "{dead} {ages:?}");
        }
    }
}

#[test]
fn a_quiet_beacon_is_refreshed() {
    let mut me = Loop::trusting();
    me.time_until("read beacon");
    let refresh = |me: &mut Loop, age| {
        let shown = Done::BeaconRead(Ok(Some(beacon(7, age, me.now))));
        me.done(shown)
    };
    for _ in 0..20 {
        assert_eq!(refresh(&mut me, 29), "");
        assert_eq!(refresh(&mut me, 60), "refresh beacon");
    }
    let refreshed = (0..100).filter(|_| refresh(&mut me, 45) == "refresh beacon").count();
    assert!((20..80).contains(&refreshed), "usually one instance does for all: {refreshed}");
}

/// Another instance may have lit it meanwhile.
#[test]
fn a_refresh_extends_the_trust_in_the_same_change() {
    for (refreshed, seconds) in [(7, 60), (8, 20)] {
        let mut me = Loop::trusting();
        me.time_until("read beacon");
        let shown = Done::BeaconRead(Ok(Some(beacon(7, 100, me.now))));
        assert_eq!(me.done(shown), "refresh beacon");
        assert_eq!(me.done(Done::BeaconRefreshed(Err(unavailable()))), "BeaconFailed");
        let refreshed = beacon(refreshed, 0, me.now);
        me.done(Done::BeaconRefreshed(Ok(Some(refreshed))));
        let trusted = me.state.beacon.trusted_until(&me.state.context).map(|until| until.saturating_sub(me.now));
        assert_eq!(trusted, Some(Duration::from_secs(seconds)));
    }
}

#[test]
fn what_an_instance_does_is_reported() {
    let mut me = Loop::new(BalancerConfig::default());
    me.has_beacon = true;
    me.step(Happened::Began([0.into()].into()));
    assert!(me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written))).contains("light beacon"), "it joins");
    me.done(Done::BeaconLit(Ok(None)));
    assert!(!me.after(1).contains("light"));
    me.after(15);
    assert!(!me.done(Done::HeartbeatSent(Ok(HeartbeatOutcome::Written))).contains("light"), "it has joined before");
}

#[test]
fn a_light_that_fails_is_repeated() {
    let mut me = Loop::trusting();
    me.releases_its_partition();
    me.done(Done::BeaconLit(Err(unavailable())));
    assert!(me.time_until("light beacon") <= 1);
    me.done(Done::BeaconLit(Err(unavailable())));
    assert!((1..=2).contains(&me.time_until("light beacon")));
}

/// Whatever the beacon shows, nothing but listings, and reads and writes of the beacon, follow.
#[test]
fn no_decision_rests_on_the_beacon() {
    for change in [i64::MIN, 0, 6, 7, 8, i64::MAX] {
        for age in [0, 59, 1000] {
            let mut me = Loop::trusting();
            me.time_until("read beacon");
            let shown = Done::BeaconRead(Ok(Some(beacon(change, age, me.now))));
            let decided = format!("{}, {}", me.done(shown), me.after(0));
            for action in decided.split(", ").filter(|action| !action.is_empty()) {
                assert!(action == "list" || action.ends_with(" beacon"), "{action}");
            }
        }
    }
}

/// A change may make a cycle due that would have come long ago without the beacon. It is not late because of that.
#[test]
fn a_cycle_that_was_not_needed_is_not_late() {
    let mut me = Loop::trusting();
    while me.now.saturating_sub(me.state.cycles.listing_sent) < 100 * SECOND {
        me.next();
    }
    me.step(Happened::Hub([0.into(), 1.into(), 2.into()].into()));
    assert_eq!(me.after(0), "list");
    assert!(Loop::trusting().after(400).contains("CycleLate"), "the process was suspended");
}
