//! By how much failing requests and failing events delay a group, as tables.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::proportion::factors::Disturbance;
use crate::proportion::reading::Measurement;
use crate::proportion::{Proportion, throughput};
use crate::simulate::args::Args;
use crate::simulate::{Failure, workers};
use crate::table;

/// The number of seeds of each measurement.
const SEEDS: u64 = 3;

/// The measured times.
pub struct Tables {
    reading: Vec<Vec<Proportion>>,
    throughput: Vec<Proportion>,
}

impl Tables {
    /// Returns what took longer than its factor says.
    pub fn exceeded(&self) -> Vec<String> {
        let all = self.reading.iter().flatten().chain(&self.throughput);
        all.filter_map(|proportion| proportion.check().err()).map(|violation| violation.to_string()).collect()
    }
}

/// Measures everything. Prints each row as soon as it is known, because some take long.
pub fn tables(args: &Args) -> Result<Tables, Failure> {
    let seeds: Vec<u64> = (args.first_seed..args.first_seed + SEEDS).collect();
    let rows = |what: String, disturbances: &[Disturbance], measure: &(dyn Fn(Disturbance, u64) -> Took + Sync)| {
        let mut row: Vec<Proportion> = Vec::new();
        for disturbance in disturbances {
            let mut times = Vec::new();
            workers::each(&seeds, args.jobs(), |seed| measure(*disturbance, seed), |took| times.push(took))?;
            let faultless = row.first().map(|first| first.took.clone());
            row.push(Proportion::new(what.clone(), *disturbance, times, faultless));
            eprintln!("{what}, {disturbance}: {}", cell(row.last()));
        }
        Ok::<_, Failure>(row)
    };
    let mut reading = Vec::new();
    for measurement in Measurement::ALL {
        let measure = |disturbance, seed| alone(measurement.take(disturbance, seed));
        reading.push(rows(measurement.to_string(), &Disturbance::OF_STORAGE, &measure)?);
    }
    let measure = |disturbance, seed| alone(throughput::measure(disturbance, seed));
    let of_handler: Vec<_> = [Disturbance::NONE].into_iter().chain(Disturbance::OF_HANDLER).collect();
    let throughput = rows(format!("{} events of a partition", throughput::EVENTS), &of_handler, &measure)?;
    Ok(Tables { reading, throughput })
}

/// How long something took; `None`: too long to wait for.
type Took = Result<Option<Duration>, Failure>;

/// Runs a measurement on a runtime of its own.
fn alone(measuring: impl Future<Output = eventhubs_checkpoint::Result<Option<Duration>>>) -> Took {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(measuring)?)
}

impl fmt::Display for Tables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.reading.iter().filter_map(|column| column.first()).map(|first| first.what.clone());
        let header: Vec<_> = [String::new()].into_iter().chain(columns).chain(["factor".to_owned()]).collect();
        let row = |(index, disturbance): (usize, &Disturbance)| {
            let cells = self.reading.iter().map(move |column| cell(column.get(index)));
            let factor = format!("{}", disturbance.factor());
            [disturbance.to_string()].into_iter().chain(cells).chain([factor]).collect()
        };
        let rows: Vec<Vec<String>> = Disturbance::OF_STORAGE.iter().enumerate().map(row).collect();
        writeln!(
            f,
            "Until all partitions are read, s, median (worst) of {SEEDS} seeds:\n\n{}",
            table::markdown(&header, &rows)
        )?;
        let row = |proportion: &Proportion| {
            vec![
                proportion.disturbance.to_string(),
                cell(Some(proportion)),
                proportion.disturbance.factor().to_string(),
            ]
        };
        let rows: Vec<_> = self.throughput.iter().map(row).collect();
        let header = ["", "until all are processed, s", "factor"].map(str::to_owned);
        write!(f, "{} events of one partition:\n\n{}", throughput::EVENTS, table::markdown(&header, &rows))
    }
}

fn cell(proportion: Option<&Proportion>) -> String {
    let seconds = |time: Option<Duration>| time.map_or_else(|| "never".to_owned(), |time| time.as_secs().to_string());
    let Some(proportion) = proportion else { return String::new() };
    format!("{} ({})", seconds(proportion.median()), seconds(proportion.worst()))
}
