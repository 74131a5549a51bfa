//! The session in `docs/ehcp.md` is what the program shows. Comments in the page say what happens between the commands.

use std::fs;
use std::time::Duration;

use azure_messaging_eventhubs::models::EventData;
use azure_messaging_eventhubs::{EventDataBatchOptions, ProducerClient};
use eventhubs_checkpoint::blob::Metadata;
use eventhubs_checkpoint::testing::Overwrite;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::crate_processor::CrateProcessor;
use crate::fleet::{Fleet, TIMEOUT};
use crate::foreign_processor::ForeignProcessor;
use crate::program::{Program, Run};
use crate::sdk::Sdk;
use crate::support::repository;

const PAGE: &str = "docs/ehcp.md";

/// A part of the page.
enum Step {
    /// A line that is not carried out.
    Text(String),
    /// A comment `<!-- session: what -->`.
    Event(String),
    /// A command, and what it shows.
    Command { line: String, shown: String },
}

const EVENT: (&str, &str) = ("<!-- session: ", " -->");

fn steps(page: &str) -> Vec<Step> {
    let (mut steps, mut is_session) = (Vec::new(), false);
    for line in page.lines() {
        if let Some(event) = line.strip_prefix(EVENT.0).and_then(|rest| rest.strip_suffix(EVENT.1)) {
            steps.push(Step::Event(event.to_owned()));
        } else if line.starts_with("```") {
            is_session = line == "```console";
            steps.push(Step::Text(line.to_owned()));
        } else if let Some(line) = line.strip_prefix("$ ").filter(|_| is_session) {
            steps.push(Step::Command { line: line.to_owned(), shown: String::new() });
        } else if let Some(Step::Command { shown, .. }) = steps.last_mut().filter(|_| is_session) {
            *shown += line;
            *shown += "\n";
        } else {
            steps.push(Step::Text(line.to_owned()));
        }
    }
    steps
}

/// What varies between runs: times, durations and ids. Columns have other widths then, too.
fn normalized(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let mut words: Vec<_> = line.split_whitespace().map(word).collect();
        // Which worker has which partitions also varies.
        if line.starts_with("worker-") {
            "PARTITIONS".clone_into(&mut words[2]);
        }
        words.join(" ")
    });
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn word(word: &str) -> String {
    let word = word.trim_end_matches([':', ',']);
    if word.starts_with("worker-") {
        return "WORKER".to_owned();
    }
    let units = ["s", "min", "h", "d"];
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if units.iter().any(|unit| word.strip_suffix(unit).is_some_and(is_number)) {
        return "DURATION".to_owned();
    }
    let is_id = word.len() == 36 && word.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    if is_id {
        return "ID".to_owned();
    }
    // The time in the name of a backup.
    if let Some((stem, _)) = word.rsplit_once('-').filter(|(_, time)| time.ends_with("Z.json")) {
        return format!("{stem}-TIME.json");
    }
    let is_time = word.len() == 20 && word.ends_with('Z') && word.contains('T');
    if is_time { "TIME".to_owned() } else { word.to_owned() }
}

struct Session {
    fleet: Fleet,
    program: Program,
    workers: Vec<CrateProcessor>,
    python: Option<ForeignProcessor>,
    last: Option<Run>,
}

impl Session {
    async fn event(&mut self, event: &str) {
        match event {
            "two workers process everything" => {
                self.fleet.all_published().await;
                for owner in ["worker-1", "worker-2"] {
                    self.workers.push(self.fleet.own(owner).await);
                }
                self.fleet.all_processed().await;
                self.fleet.shared_among(&["worker-1", "worker-2"]).await;
            }
            "a Python processor works in billing" => {
                if Sdk::Python.is_here() {
                    self.python = Some(self.fleet.foreign_in(Sdk::Python, "billing").await);
                    self.until_describes("billing", "stable").await;
                }
            }
            "they process all events again" => {
                for partition in self.fleet.hub.partition_ids() {
                    self.fleet.processes_range(&partition, 0, 49).await;
                }
                self.fleet.all_processed().await;
                self.fleet.shared_among(&["worker-1", "worker-2"]).await;
            }
            "forget what was processed" => self.fleet.processed.clear(),
            "the workers stop" => {
                for worker in self.workers.drain(..) {
                    worker.shut_down().await;
                }
            }
            "plant six faults" => plant(&self.fleet).await,
            "publish an event that is no order" => publish(&self.fleet, "3", b"\x00 not an order").await,
            unknown => panic!("{PAGE}: {unknown:?}"),
        }
    }

    async fn until_describes(&self, group: &str, state: &str) {
        let started = Instant::now();
        loop {
            // A group without records, such as one that starts, cannot be described.
            let run = self.program.run(&["describe", "-g", group, "-o", "json"]).await;
            let described: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
            if described["group"]["lag"]["events"] == 0 && described["group"]["state"] == state {
                return;
            }
            assert!(started.elapsed() < TIMEOUT, "{group} is not {state}: {run:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns what a command shows, first its results and then its messages.
    async fn command(&mut self, line: &str) -> String {
        if line == "echo $?" {
            return self.last.as_ref().unwrap().code.to_string();
        }
        let words: Vec<_> = line.split_whitespace().collect();
        let (program, arguments) = words.split_first().unwrap();
        assert_eq!(*program, "ehcp", "{line}");
        let run = self.program.run(arguments).await;
        let shown = format!("{}{}", run.stdout, run.stderr);
        self.last = Some(run);
        shown
    }
}

/// Writes records that other programs could have written.
async fn plant(fleet: &Fleet) {
    const LOWER: &str = "localhost/orders/$default";
    let write = async |name: String, pairs: &[(&str, &str)]| {
        let metadata: Metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        fleet.container.overwrite(&name, &metadata).await.unwrap();
    };
    // The next events of partition 0 have expired, and partition 1 was recreated.
    fleet.hub.expire_before("0", 30).unwrap();
    write(format!("{LOWER}/checkpoint/0"), &[("sequencenumber", "10"), ("offset", "10")]).await;
    write(format!("{LOWER}/checkpoint/1"), &[("sequencenumber", "5000"), ("offset", "5000")]).await;
    write(format!("{LOWER}/checkpoint/2"), &[("sequencenumber", "20"), ("offset", "")]).await;
    // The event hub has no partition 9. An ownership needs an owner ID, which is empty after a release.
    write(format!("{LOWER}/checkpoint/9"), &[("sequencenumber", "7"), ("offset", "7")]).await;
    write(format!("{LOWER}/ownership/3"), &[("owner", "x")]).await;
    // A program that writes the names as they are given, and has stopped.
    write("localhost/orders/$Default/ownership/3".to_owned(), &[("ownerid", "")]).await;
}

async fn publish(fleet: &Fleet, partition: &str, body: &[u8]) {
    let builder = ProducerClient::builder().with_custom_endpoint(fleet.hub.endpoint());
    let producer = builder.open_with_connection_string(&fleet.hub.connection_string(), None).await.unwrap();
    let options = EventDataBatchOptions { partition_id: Some(partition.to_owned()), ..Default::default() };
    let batch = producer.create_batch(Some(options)).await.unwrap();
    assert!(batch.try_add_event_data(EventData::from(body.to_vec()), None).unwrap());
    producer.send_batch(batch, None).await.unwrap();
}

/// `SNAPSHOTS=overwrite` writes what is shown into the page.
#[tokio::test]
async fn the_session_of_the_page_is_true() {
    let file = repository::root().join(PAGE);
    let overwrites = std::env::var("SNAPSHOTS").is_ok_and(|mode| mode == "overwrite");
    let steps = steps(&fs::read_to_string(&file).unwrap());
    let commands = steps.iter().filter(|step| matches!(step, Step::Command { .. })).count();
    assert!(commands > 12, "the session of the page is not found");
    let fleet = Fleet::with_batches(4, 40).await;
    let program = Program::for_fleet(&fleet).await;
    let mut session = Session { fleet, program, workers: Vec::new(), python: None, last: None };
    let mut page = String::new();
    for step in steps {
        let line = match step {
            Step::Text(line) => line,
            Step::Event(event) => {
                session.event(&event).await;
                [EVENT.0, &event, EVENT.1].concat()
            }
            Step::Command { line, shown } if line.contains("billing") && session.python.is_none() => {
                format!("$ {line}\n{}", shown.trim_end())
            }
            Step::Command { line, shown } => {
                let found = session.command(&line).await;
                let is_true = overwrites || normalized(&found) == normalized(&shown);
                assert!(is_true, "$ {line}\n{found}\ninstead of\n{shown}");
                format!("$ {line}\n{}", found.trim_end())
            }
        };
        page.extend([line.as_str(), "\n"]);
    }
    if overwrites {
        fs::write(&file, page).unwrap();
    }
}
