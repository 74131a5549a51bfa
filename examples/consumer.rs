//! A consumer that shares an event hub among instances and checkpoints in blob storage. `--help` lists the options.
//!
//! The code that an application needs is in `consumer/instance.rs`; the rest displays and counts.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use eventhubs_checkpoint::LOG_FILTER;
use tracing_subscriber::EnvFilter;

#[path = "consumer/args.rs"]
mod args;
#[path = "support/connection.rs"]
mod connection;
#[path = "consumer/driver.rs"]
mod driver;
#[path = "support/hub.rs"]
mod hub;
#[path = "consumer/instance.rs"]
mod instance;
#[path = "consumer/journal.rs"]
mod journal;
#[path = "consumer/lag.rs"]
mod lag;
#[path = "consumer/ledger.rs"]
mod ledger;
#[path = "consumer/producer.rs"]
mod producer;
#[path = "consumer/ranges.rs"]
mod ranges;
#[path = "consumer/report.rs"]
mod report;
#[path = "support/runs.rs"]
mod runs;
#[path = "consumer/screen.rs"]
mod screen;
#[path = "support/signals.rs"]
mod signals;
#[path = "consumer/storage.rs"]
mod storage;
mod support;
#[path = "consumer/table.rs"]
mod table;

use args::Args;
use driver::Driver;
use hub::Hub;
use journal::Journal;
use report::Report;
use screen::Screen;
use storage::Storage;

/// Any error of the example.
type Failure = Box<dyn std::error::Error + Send + Sync>;

const LOST: u8 = 1;
const FAILED: u8 = 2;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // The official client and its AMQP stack log each link that breaks; this crate recovers and logs it itself. A
    // directive in `RUST_LOG` that names one of them overrides this.
    let directives = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_else(|_| "warn".to_owned());
    let filter = format!("{LOG_FILTER},{directives}");
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match run(&args).await {
        Ok(report) => {
            let json = serde_json::to_string(&report);
            println!("{}", json.ok().filter(|_| args.json).unwrap_or_else(|| report.to_string()));
            if report.lost == 0 { ExitCode::SUCCESS } else { LOST.into() }
        }
        Err(failure) => {
            eprintln!("error: {}", with_causes(&*failure));
            FAILED.into()
        }
    }
}

async fn run(args: &Args) -> Result<Report, Failure> {
    let shutdown = signals::asked_to_end();
    let plan = args.plan()?;
    let journal = args.journal.as_deref().map(Journal::open).transpose()?;
    let storage = Storage::open(args).await?;
    let hub = Arc::new(Hub::open(&args.hub, args.partitions).await?);
    // The hub is kept until the end, because it owns the embedded emulator.
    Driver::start(plan, hub.clone(), &storage, journal, Screen::new(args.json)).await?.run(shutdown).await
}

fn with_causes(failure: &(dyn std::error::Error + 'static)) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
