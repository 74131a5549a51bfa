//! Steps of the check: each waits for a condition, has a deadline, and is part of the report.

use std::collections::BTreeMap;
use std::time::Duration;

use eventhubs_checkpoint::GroupStore;
use tokio::time::sleep;

use crate::Failure;
use crate::journal::{Entry, now, read_entries};
use crate::tally::{find_readers, longest_unread};
use crate::worker::Settings;
use crate::workers::count_owned;

const JOURNAL_POLL: Duration = Duration::from_millis(100);
/// A listing costs more than any other request.
const LISTING_POLL: Duration = Duration::from_secs(1);

/// One row of the report.
pub struct Step {
    pub name: String,
    /// A detail if it holds, otherwise the reason why not.
    pub outcome: Result<String, String>,
    pub took: Duration,
}

/// A step does not hold, so the following ones cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unmet(String);

pub struct Steps {
    pub taken: Vec<Step>,
    pub settings: Settings,
    pub store: GroupStore,
    pub partitions: usize,
    /// How long a step may take.
    pub limit: Duration,
}

impl Steps {
    pub fn entries(&self) -> Result<Vec<Entry>, Failure> {
        read_entries(&self.settings.journal())
    }

    pub fn note(&mut self, name: &str, outcome: Result<String, String>, began: i64) -> Result<(), Failure> {
        let took = Duration::from_millis((now() - began).try_into().unwrap_or_default());
        let detail = outcome.as_ref().unwrap_or_else(|reason| reason).clone();
        let result = if outcome.is_ok() { "ok" } else { "FAILED" };
        eprintln!("{:>6.1} s  {result}  {name}; {detail}", took.as_secs_f64());
        let unmet = outcome.clone().err();
        self.taken.push(Step { name: name.to_owned(), outcome, took });
        unmet.map_or(Ok(()), |reason| Err(Unmet(format!("{name}: {reason}")).into()))
    }

    /// Waits until these owners read all partitions in equal shares, and the records say so, too.
    pub async fn until_shared(&mut self, name: &str, owners: &[&str], began: i64) -> Result<(), Failure> {
        loop {
            let entries = self.entries()?;
            let mut shares: BTreeMap<_, _> = owners.iter().map(|owner| ((*owner).to_owned(), 0)).collect();
            for owner in find_readers(&entries).into_values() {
                *shares.entry(owner.to_owned()).or_default() += 1;
            }
            let is_shared = is_fair(&shares, owners.len(), self.partitions);
            shares.retain(|_, share| *share > 0);
            if is_shared && count_owned(&self.store).await? == shares {
                let shares: Vec<_> = shares.iter().map(|(owner, share)| format!("{owner} {share}")).collect();
                let unread = Duration::from_millis(longest_unread(&entries, began).try_into().unwrap_or_default());
                let detail = format!("{}, unread for up to {:.1} s", shares.join(", "), unread.as_secs_f64());
                return self.note(name, Ok(detail), began);
            }
            if is_over(began, self.limit) {
                return self.note(name, Err(format!("the readers are {shares:?}")), began);
            }
            sleep(if is_shared { LISTING_POLL } else { JOURNAL_POLL }).await;
        }
    }

    /// Waits for a condition of the journal, which returns a detail when it is met.
    pub async fn until(
        &mut self,
        name: &str,
        limit: Duration,
        condition: impl Fn(&[Entry]) -> Option<String>,
    ) -> Result<(), Failure> {
        let began = now();
        loop {
            if let Some(detail) = condition(&self.entries()?) {
                return self.note(name, Ok(detail), began);
            }
            if is_over(began, limit) {
                return self.note(name, Err(format!("not within {limit:?}")), began);
            }
            sleep(JOURNAL_POLL).await;
        }
    }
}

/// Returns whether this many owners, and no others, have all partitions, in shares that differ by at most one.
fn is_fair(shares: &BTreeMap<String, usize>, owners: usize, partitions: usize) -> bool {
    let least = shares.values().min().copied().unwrap_or_default();
    let most = shares.values().max().copied().unwrap_or_default();
    shares.len() == owners && shares.values().sum::<usize>() == partitions && most <= least + 1
}

fn is_over(began: i64, limit: Duration) -> bool {
    u128::try_from(now() - began).is_ok_and(|took| took > limit.as_millis())
}
