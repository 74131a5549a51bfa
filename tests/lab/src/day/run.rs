//! One run.

use std::fmt;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::Failure;
use super::args::Args;
use super::group::Group;
use super::incidents::{Incident, incidents};
use super::instances::Instance;
use super::reading::Totals;
use super::relay::Traffic;
use super::wall_clock::Faked;

/// How long the first instance may take to own all partitions.
const START: Duration = Duration::from_secs(60);

/// The time between the starts of two instances, so that their tokens have different ages.
const STAGGER: Duration = Duration::from_secs(7 * 60);

/// The outcome of a run.
pub(super) struct Report {
    ran: Duration,
    totals: Totals,
    handed_over: usize,
    tokens: usize,
}

impl Report {
    /// Returns whether every event was delivered in time.
    pub(super) fn holds(&self, args: &Args) -> bool {
        let Totals { undelivered, skipped, longest_unread, .. } = self.totals;
        undelivered == 0 && skipped == 0 && longest_unread <= args.limit()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { published, undelivered, skipped, repeated, longest_unread, longest_until } = self.totals;
        writeln!(f, "emulated time        {:.1} h", hours(self.ran))?;
        writeln!(f, "events published     {published}")?;
        writeln!(f, "events not delivered {undelivered}")?;
        writeln!(f, "events skipped       {skipped}")?;
        writeln!(f, "events repeated      {repeated}")?;
        writeln!(f, "tokens issued        {}", self.tokens)?;
        writeln!(f, "handoffs             {}", self.handed_over)?;
        write!(f, "longest unread       {:.2} s, until {:.2} h", longest_unread.as_secs_f64(), hours(longest_until))
    }
}

fn hours(time: Duration) -> f64 {
    time.as_secs_f64() / 3600.0
}

/// Runs a group for the emulated time.
pub(super) async fn run(args: &Args, clock: Faked) -> Result<Report, Failure> {
    let (tasks, traffic) = (LocalSet::new(), Traffic::default());
    tokio::select! {
        failure = clock.advance(&traffic) => Err(failure),
        report = tasks.run_until(run_group(args, traffic.clone())) => report,
    }
}

async fn run_group(args: &Args, traffic: Traffic) -> Result<Report, Failure> {
    let mut group = Group::new(args, traffic).await?;
    let mut instances = vec![group.start_instance(args).await?];
    sleep(START).await;
    let began = Instant::now();
    let publishing = group.publish();
    while instances.len() < args.instances {
        sleep(STAGGER).await;
        instances.push(group.start_instance(args).await?);
    }
    let mut rng = StdRng::seed_from_u64(args.seed);
    let mut handed_over = 0;
    for (at, incident) in incidents(args, &mut rng) {
        sleep_until(began + at).await;
        match incident {
            Incident::Join => instances.push(group.start_instance(args).await?),
            Incident::Leave => {
                let mut visitor = instances.swap_remove(args.instances);
                handed_over += visitor.handed_over();
                visitor.shut_down().await?;
            }
            Incident::Detach => group.detach_one(&mut rng),
            Incident::Cut => _ = group.hub.cut_connections(),
        }
    }
    sleep_until(began + args.duration()).await;
    publishing.abort();
    sleep(args.limit()).await;
    let report = Report {
        ran: began.elapsed(),
        totals: group.reading.totals(began),
        handed_over: handed_over + instances.iter_mut().map(Instance::handed_over).sum::<usize>(),
        tokens: group.tokens_issued(),
    };
    for instance in instances {
        instance.shut_down().await?;
    }
    Ok(report)
}
