//! The records: positions go forward, and who was displaced writes no more.

use super::Check;
use crate::chaos::evidence::Evidence;
use crate::chaos::writes::{Kind, Write, chain, tenures};

/// As listings showed it, and as every single accepted write did.
pub fn positions_never_move_back(evidence: &Evidence) -> Check {
    let mut back: Vec<_> = evidence.seen.backwards.iter().map(|(at, what)| format!("at {at:.1?} {what}")).collect();
    for partition in evidence.published.keys() {
        for pair in chain(evidence.writes_to(Kind::Checkpoint, partition)).windows(2) {
            if pair[1].position < pair[0].position {
                let (from, to) = (pair[0].position, pair[1].position);
                back.push(format!("{} moved partition {partition} from {from} to {to}", pair[1].by));
            }
        }
    }
    Check::new("positions never move back", &back, format!("{} looks", evidence.seen.looks))
}

/// Each accepted checkpoint belongs to a tenure of its writer. Once one of a later tenure was accepted, none of an
/// earlier one may be.
pub fn displaced_instances_are_fenced(evidence: &Evidence) -> Check {
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for partition in evidence.published.keys() {
        let writes: Vec<_> = evidence.writes_to(Kind::Checkpoint, partition).collect();
        refused += writes.iter().filter(|write| write.is_refused()).count();
        let tenures = tenures(&chain(evidence.writes_to(Kind::Ownership, partition)));
        let tenure_of =
            |write: &Write| tenures.iter().rposition(|tenure| tenure.owner == write.by && tenure.from < write.sent);
        let mut latest = None;
        for write in chain(writes) {
            let tenure = tenure_of(write);
            let claim_unanswered = || {
                let mut claims = evidence.writes_to(Kind::Ownership, partition);
                claims.any(|claim| claim.by == write.by && claim.is_open() && claim.sent < write.sent)
            };
            // The answer to its claim is not known to anybody: no judgement.
            if tenure < latest && !claim_unanswered() || tenure.is_none() && !claim_unanswered() {
                wrong.push(format!(
                    "{} wrote {} to partition {partition} at {:.1?}",
                    write.by, write.position, write.sent
                ));
            }
            latest = latest.max(tenure);
        }
    }
    Check::new("who was displaced writes no checkpoint", &wrong, format!("{refused} refused"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::clock::Moment;
    use crate::chaos::evidence::tests::in_order;
    use crate::chaos::writes::tests::{life, write};

    fn moved() -> Evidence {
        let mut evidence = in_order();
        evidence.writes = vec![
            write(Kind::Ownership, life(0), 1, ("", "o1"), 0),
            write(Kind::Checkpoint, life(0), 10, ("", "c1"), 3),
            write(Kind::Ownership, life(1), 30, ("o1", "o2"), 0),
            write(Kind::Checkpoint, life(1), 40, ("c1", "c2"), 3),
            write(Kind::Checkpoint, life(1), 50, ("c2", "c3"), 9),
        ];
        evidence
    }

    #[test]
    fn a_zombie_that_is_accepted_is_found() {
        let mut evidence = moved();
        assert!(displaced_instances_are_fenced(&evidence).holds);
        let refused = Write { status: 412, etag: None, ..write(Kind::Checkpoint, life(0), 55, ("c1", ""), 5) };
        evidence.writes.push(refused);
        let check = displaced_instances_are_fenced(&evidence);
        assert_eq!((check.holds, check.detail.as_str()), (true, "1 refused"));
        evidence.writes.push(write(Kind::Checkpoint, life(0), 60, ("c3", "c4"), 12));
        let check = displaced_instances_are_fenced(&evidence);
        assert_eq!((check.holds, check.detail.as_str()), (false, "i1.1 wrote 12 to partition 0 at 60.0ms"));
    }

    #[test]
    fn who_lost_a_partition_before_the_next_one_adopted_it_may_still_write() {
        let mut evidence = moved();
        evidence.writes.insert(3, write(Kind::Checkpoint, life(0), 35, ("c1", "c1b"), 4));
        evidence.writes[4].replaces = Some("c1b".to_owned());
        assert!(displaced_instances_are_fenced(&evidence).holds);
    }

    #[test]
    fn who_never_owned_it_must_not_write() {
        let mut evidence = moved();
        evidence.writes.remove(0);
        assert!(!displaced_instances_are_fenced(&evidence).holds);
    }

    #[test]
    fn steps_back_are_found_in_what_was_written_and_in_what_was_seen() {
        let mut evidence = moved();
        assert!(positions_never_move_back(&evidence).holds);
        evidence.writes.push(write(Kind::Checkpoint, life(1), 60, ("c3", "c4"), 8));
        evidence.seen.backwards.push((Moment::from_secs(2), "partition 0 from 9 to Some(8)".to_owned()));
        let check = positions_never_move_back(&evidence);
        assert_eq!(check.detail, "at 2.0s partition 0 from 9 to Some(8); i2.1 moved partition 0 from 9 to 8");
    }
}
