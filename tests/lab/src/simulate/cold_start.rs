//! How long a group needs from its start until every partition has an owner, with both strategies.

use std::time::Duration;

use eventhubs_checkpoint::balancer::{BalancerConfig, LoadBalancingStrategy};
use tokio::time::sleep;

use crate::sim::{Metered, Simulation};
use crate::simulate::Failure;
use crate::simulate::args::Args;
use crate::simulate::workers;
use crate::table;

/// Partitions and instances.
const SIZES: [(u32, u32); 4] = [(32, 4), (256, 16), (512, 2), (1024, 64)];
const SEEDS: u64 = 3;
/// All instances start within this time.
const STARTS: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(2 * 60 * 60);
/// After that nothing moves anymore.
const SETTLED: Duration = Duration::from_secs(2 * 60);

#[derive(Clone, Copy, Debug)]
enum Strategy {
    Balanced,
    Greedy,
}

impl Strategy {
    const ALL: [Self; 2] = [Self::Balanced, Self::Greedy];

    fn config(self) -> BalancerConfig {
        BalancerConfig::default().with_load_balancing_strategy(match self {
            Self::Balanced => LoadBalancingStrategy::Balanced,
            Self::Greedy => LoadBalancingStrategy::Greedy,
        })
    }
}

/// One start of a group.
struct ColdStart {
    covered_after: Duration,
    /// Until every partition has an owner.
    metered: Metered,
    conflicts: u64,
    moves: usize,
}

/// Returns the table, in Markdown. Prints each row as soon as it is known, because the last ones take long.
pub fn cold_starts(args: &Args) -> Result<String, Failure> {
    let cases = SIZES.iter().flat_map(|size| Strategy::ALL.map(|strategy| (*size, strategy)));
    let seeds: Vec<u64> = (1..=SEEDS).collect();
    let mut rows = Vec::new();
    for (size, strategy) in cases {
        let mut starts = Vec::new();
        workers::each(&seeds, args.jobs(), |seed| cold_start(size, strategy, seed), |start| starts.push(start))?;
        let row = row((size, strategy), &starts);
        eprintln!("{}", row.join(" | "));
        rows.push(row);
    }
    let header = ["partitions, instances", "strategy", "all owned after, s", "requests", "claim conflicts", "moves"];
    Ok(format!(
        "From the start of the first instance, with all others started within {} s, until every partition has an owner. \
         Median (worst) of {SEEDS} seeds, requests of up to 100 ms:\n\n{}",
        STARTS.as_secs(),
        table::markdown(&header.map(str::to_owned), &rows)
    ))
}

fn row(((partitions, instances), strategy): ((u32, u32), Strategy), starts: &[ColdStart]) -> Vec<String> {
    let spread = |of: fn(&ColdStart) -> u64| {
        let mut values: Vec<_> = starts.iter().map(of).collect();
        values.sort_unstable();
        format!("{} ({})", values[values.len() / 2], values[values.len() - 1])
    };
    vec![
        format!("{partitions}, {instances}"),
        format!("`{strategy:?}`"),
        spread(|start| start.covered_after.as_secs()),
        spread(|start| start.metered.requests),
        spread(|start| start.conflicts),
        spread(|start| start.moves as u64),
    ]
}

fn cold_start((partitions, instances): (u32, u32), strategy: Strategy, seed: u64) -> Result<ColdStart, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(async {
        let mut group = Simulation::new(seed, partitions).with_handlers(Duration::from_secs(1));
        for instance in 0..instances {
            group.start(&format!("instance-{instance}"), strategy.config()).await?;
            sleep(STARTS / instances).await;
        }
        let all_owned = |group: &Simulation| group.owners().len() == partitions as usize;
        group.run_until(LONGEST, all_owned).await.ok_or("some partition is not owned after two hours")?;
        let (covered_after, metered, conflicts) = (group.elapsed(), group.meter().take(), group.claim_conflicts());
        group.run_for(SETTLED).await;
        Ok(ColdStart { covered_after, metered, conflicts, moves: group.moved() })
    })
}
