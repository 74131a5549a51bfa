//! `ehcp migrate`: the records of other programs, and where this crate continues after them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::fleet::Fleet;
use crate::legacy::{Blobs, CHECKPOINTS, Source, offset_of};
use crate::program::{Program, Run};
use crate::sas::{FUTURE, account_sas, fresh_name};
use crate::support::azurite;
use crate::support::repository;

/// The last event of each partition.
const LAST: i64 = 19;

/// How many programs are migrated at the same time.
const CONCURRENT: usize = 2;

/// An event hub with 20 events in each of three partitions, and a group without records. EventProcessorHost of Node.js
/// sends its requests for properties without a token, which only Azure Stack rejects (Azure/azure-sdk-for-js#7463).
async fn published() -> (Fleet, Program) {
    let mut fleet = Fleet::on(Fleet::event_hub(3).with_management_token_check(false), 12).await;
    fleet.all_published().await;
    let program = Program::for_fleet(&fleet).await;
    (fleet, program)
}

/// The records of .NET at these positions, in a container of their own.
async fn dotnet(fleet: &Fleet, positions: &[(&str, i64)]) -> (Blobs, String) {
    let container = fresh_name();
    let blobs = Blobs::create(&container).await;
    for (partition, number) in positions {
        let offset = offset_of(fleet, partition, *number);
        let (name, content) = Source::DotNet.record(partition, Some(&(*number, offset)));
        blobs.put(&name, &content).await;
    }
    (blobs, container)
}

fn migrate<'a>(container: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    [&["migrate", "--from", "eph", "--source-container", container], options].concat()
}

/// Returns the sequence number of each checkpoint.
async fn checkpoints(fleet: &Fleet) -> BTreeMap<String, i64> {
    fleet.checkpoints().await.into_iter().map(|(id, position)| (id, position.sequence_number)).collect()
}

fn at(numbers: &[(&str, i64)]) -> BTreeMap<String, i64> {
    numbers.iter().map(|(partition, number)| ((*partition).to_owned(), *number)).collect()
}

/// Returns the effect and the new position of a change.
fn planned<'a>(plan: &'a Value, partition: &str) -> (&'a str, Option<i64>) {
    let change = plan["changes"].as_array().unwrap().iter().find(|change| change["partition"] == partition).unwrap();
    (change["effect"].as_str().unwrap(), change["to"]["sequence_number"].as_i64())
}

mod continuation {
    use super::*;

    /// The records of each program before, the migration, and the first event that a processor of this crate then
    /// processes. `--nocapture` shows them all.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn is_exactly_after_the_checkpoint() {
        let page = std::fs::read_to_string(repository::root().join("docs/legacy-records.md")).unwrap();
        let rows: Vec<_> = stream::iter(Source::ALL).map(continued).buffered(CONCURRENT).collect().await;
        println!("| source | partition 0 | partition 1 | partition 2 |\n|---|---|---|---|\n{}", rows.join("\n"));
        assert!(rows.iter().all(|row| page.contains(row)), "docs/legacy-records.md has another table");
    }

    async fn continued(source: Source) -> String {
        let (fleet, program) = published().await;
        let container = fresh_name();
        let options = source.write(&fleet, &program, &container).await;
        let command = ["migrate", "--from", source.option()].into_iter();
        let command: Vec<_> = command.chain(options.iter().map(String::as_str)).collect();
        let before = contents(source, &container).await;

        let run = program.run(&command).await.ended(2);
        println!("{} before:\n{}\n{}{}", source.name(), before.join("\n"), run.stdout, run.stderr);
        assert_eq!(checkpoints(&fleet).await, at(&[]), "a dry run writes nothing");
        program.run(&[&command[..], &["--execute"]].concat()).await.ended(0);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 7), ("1", 12)]));
        for (partition, position) in fleet.checkpoints().await {
            assert_eq!(position.offset, offset_of(&fleet, &partition, position.sequence_number));
        }
        assert_eq!(contents(source, &container).await, before, "the source stays");
        program.run(&[&command[..], &["--execute"]].concat()).await.ended(0);

        let processor = fleet.own("a").await;
        let mut cells = vec![source.name().to_owned()];
        for (partition, checkpoint) in CHECKPOINTS {
            let expected = checkpoint.map_or(0, |number| number + 1);
            fleet.processes_range(partition, expected, LAST).await;
            let seen = fleet.processed.oldest(partition).unwrap();
            cells.push(format!("{expected} / {seen}"));
        }
        processor.shut_down().await;
        format!("| {} |", cells.join(" | "))
    }

    async fn contents(source: Source, container: &str) -> Vec<String> {
        if source == Source::Kafka {
            return Vec::new();
        }
        let blobs = Blobs::create(container).await;
        let mut contents = Vec::new();
        for (partition, _) in CHECKPOINTS {
            let (name, _) = source.record(partition, None);
            contents.push(format!("{name} {}", blobs.get(&name).await));
        }
        contents
    }
}

mod safety {
    use super::*;

    #[tokio::test]
    async fn live_sources_are_refused() {
        let (fleet, program) = published().await;
        let (blobs, container) = dotnet(&fleet, &[("0", 7), ("1", 12)]).await;
        blobs.lease("$Default/1").await;
        let run = program.run(&migrate(&container, &[])).await.ended(2);
        assert!(
            run.stderr.contains("--execute would be refused: a program is processing partition 1"),
            "{}",
            run.stderr
        );
        let run = program.run(&migrate(&container, &["--execute"])).await.ended(3);
        assert!(run.stderr.contains("whose blob is leased: stop it"), "{}", run.stderr);
        assert_eq!((checkpoints(&fleet).await, program.backups().len()), (at(&[]), 0));

        program.run(&migrate(&container, &["-p", "0", "--execute"])).await.ended(0);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 7)]), "the program does not process this partition");
        program.run(&migrate(&container, &["--force", "--execute"])).await.ended(0);
        program.run(&migrate(&container, &["--execute"])).await.ended(0);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 7), ("1", 12)]));
    }

    #[tokio::test]
    async fn checkpoints_that_exist_are_kept() {
        let (fleet, program) = published().await;
        let (_, container) = dotnet(&fleet, &[("0", 7), ("1", 12)]).await;
        program.run(&["reset", "--to-sequence", "3", "-p", "0", "--execute"]).await.ended(0);
        let run = program.run(&migrate(&container, &["--execute"])).await.ended(0);
        assert!(run.stdout.contains("no change: it has a checkpoint"), "{}", run.stdout);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 3), ("1", 12)]));
        let run = program.run(&migrate(&container, &["--overwrite", "--execute"])).await.ended(0);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 7), ("1", 12)]));
        undo(&program, &run).await;
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 3), ("1", 12)]));
    }

    #[tokio::test]
    async fn a_migration_is_undone() {
        let (fleet, program) = published().await;
        let (_, container) = dotnet(&fleet, &[("0", 7), ("1", 12)]).await;
        let run = program.run(&migrate(&container, &["--execute"])).await.ended(0);
        undo(&program, &run).await;
        assert_eq!(checkpoints(&fleet).await, at(&[]));
    }

    async fn undo(program: &Program, run: &Run) {
        let commands: Vec<_> = run.stderr.lines().filter_map(|line| line.strip_prefix("undo: ehcp ")).collect();
        assert!(!commands.is_empty(), "{run:?}");
        for command in commands {
            program.run(&command.split(' ').collect::<Vec<_>>()).await.ended(0);
        }
    }

    #[tokio::test]
    async fn live_owners_of_the_group_are_displaced_on_request() {
        let (fleet, program) = published().await;
        let (_, container) = dotnet(&fleet, &[("0", 7), ("1", 12)]).await;
        let a = fleet.own("a").await;
        fleet.all_processed().await;
        let overwrite = migrate(&container, &["--overwrite", "--execute"]);
        let run = program.run(&overwrite).await.ended(3);
        assert!(run.stderr.contains("a is processing partition 0"), "{}", run.stderr);
        program.run(&[&overwrite[..], &["--force"]].concat()).await.ended(3);
        fleet.processed.clear();
        program.run(&[&overwrite[..], &["--live"]].concat()).await.ended(0);
        fleet.processes_range("0", 8, LAST).await;
        fleet.processes_range("1", 13, LAST).await;
        a.shut_down().await;
    }

    /// Azure Functions changes the format at its version 5, and leaves the old records.
    #[tokio::test]
    async fn newer_checkpoints_beside_the_old_are_refused() {
        let (fleet, program) = published().await;
        let (blobs, container) = dotnet(&fleet, &[("0", 7)]).await;
        blobs.put("localhost/orders/$default/checkpoint/0", "").await;
        let run = program.run(&migrate(&container, &["--execute"])).await.ended(3);
        assert!(run.stderr.contains("ehcp copy"), "{}", run.stderr);
        program.run(&migrate(&container, &["--execute", "--force"])).await.ended(0);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 7)]));
    }

    #[tokio::test]
    async fn an_interrupt_leaves_each_done_or_untouched() {
        let (fleet, program) = published().await;
        let (_, container) = dotnet(&fleet, &[("0", 7), ("1", 12)]).await;
        for milliseconds in [0, 60, 120, 200, 300] {
            let running = program.spawn(&migrate(&container, &["--overwrite", "--execute", "-o", "json"]));
            sleep(Duration::from_millis(milliseconds)).await;
            let id = Pid::from_raw(i32::try_from(running.id().unwrap()).unwrap()).unwrap();
            kill_process(id, Signal::INT).unwrap();
            let run = Run::of(running.wait_with_output().await.unwrap());
            let found = checkpoints(&fleet).await;
            // Before the handler of the signal is installed, it ends the program, which has written nothing by then.
            let reported: Value = serde_json::from_str(&run.stdout).unwrap_or(json!({ "changes": [] }));
            for (partition, number) in [("0", 7), ("1", 12)] {
                let changes = reported["changes"].as_array().unwrap();
                let change = changes.iter().find(|change| change["partition"] == partition);
                match change.and_then(|change| change["result"].as_str()) {
                    Some("done") => assert_eq!(found[partition], number),
                    Some(result) if result.starts_with("unknown") => {}
                    result => assert_eq!(found.get(partition), None, "{result:?}"),
                }
            }
            let owners = fleet.records().await;
            assert!(owners.values().all(|(owner, _)| owner.is_empty()), "{owners:?}");
            program.run(&["delete", "--checkpoints", "--execute"]).await.ended(0);
        }
    }
}

mod records {
    use super::*;

    #[tokio::test]
    async fn malformed_ones_are_reported_and_the_others_written() {
        let (fleet, program) = published().await;
        let (blobs, container) = dotnet(&fleet, &[("0", 7)]).await;
        blobs.put("$Default/1", "<html>").await;
        blobs.put("$Default/9", r#"{"Offset":"1","SequenceNumber":1}"#).await;
        let run = program.run(&migrate(&container, &["--execute"])).await.ended(1);
        for part in ["refused: $Default/1: its content is not JSON", "refused: the event hub has no such partition"] {
            assert!(run.stdout.contains(part), "{}", run.stdout);
        }
        assert_eq!(checkpoints(&fleet).await, at(&[("0", 7)]));
    }

    #[tokio::test]
    async fn positions_outside_of_the_partition_are_clamped() {
        let (fleet, program) = published().await;
        let (blobs, container) = dotnet(&fleet, &[("0", 7)]).await;
        fleet.hub.expire_before("0", 10).unwrap();
        let beyond = Source::DotNet.record("1", Some(&(500, "90000".to_owned())));
        blobs.put(&beyond.0, &beyond.1).await;
        let other_hub = Source::DotNet.record("2", Some(&(7, "90000".to_owned())));
        blobs.put(&other_hub.0, &other_hub.1).await;
        let plan = program.json(&migrate(&container, &[])).await;
        assert_eq!(planned(&plan, "0"), ("create", Some(9)));
        assert_eq!(planned(&plan, "1"), ("create", Some(LAST)));
        assert_eq!(planned(&plan, "2"), ("refused", None));
        let shown = program.run(&migrate(&container, &[])).await.ended(2).stdout;
        for part in
            ["create: it is before the first available event", "create: it is after the last event", "not 90000"]
        {
            assert!(shown.contains(part), "{shown}");
        }
    }

    /// As the Go SDK writes the start of a partition that it has not processed.
    #[tokio::test]
    async fn ends_of_the_partition_are_positions() {
        let (fleet, program) = published().await;
        let container = fresh_name();
        let blobs = Blobs::create(&container).await;
        for (partition, offset) in [("0", "-1"), ("1", "@latest")] {
            let (name, content) = Source::Go.record(partition, Some(&(0, offset.to_owned())));
            blobs.put(&name, &content).await;
        }
        let run = program.run(&["migrate", "--from", "go-eph", "--source-container", &container, "--execute"]).await;
        run.ended(0);
        assert_eq!(checkpoints(&fleet).await, at(&[("0", -1), ("1", LAST)]));
    }

    #[tokio::test]
    async fn every_format_shows_them() {
        let (fleet, program) = published().await;
        let (blobs, container) = dotnet(&fleet, &[("0", 7)]).await;
        blobs.put("$Default/1", r#"{"offset":null,"sequenceNumber":0,"owner":"host-\u001b[31m"}"#).await;
        let run = program.run(&migrate(&container, &[])).await.ended(2);
        let header: Vec<_> = run.stdout.lines().next().unwrap().split_whitespace().collect();
        assert_eq!(header, ["PARTITION", "SOURCE-OWNER", "LIVE", "SEQUENCE", "OFFSET", "TO", "EFFECT"]);
        assert!(
            run.stdout.contains("so the start position decides") && !run.stdout.contains('\u{1b}'),
            "{}",
            run.stdout
        );
        let csv = program.run(&migrate(&container, &["-o", "csv"])).await.ended(2).stdout;
        assert!(
            csv.starts_with("partition,source_owner,live,sequence,offset,from,to,to_offset,effect\n0,,no,7,"),
            "{csv}"
        );
        assert_eq!(program.run(&migrate(&container, &["-o", "ndjson"])).await.ended(2).stdout.lines().count(), 3);
        let plan = program.json(&migrate(&container, &[])).await;
        assert_eq!((&plan["schema"], &plan["dry_run"]), (&json!("ehcp.migration/1"), &json!(true)));
        assert_eq!(plan["source"], json!({ "container": container, "prefix": "$Default/" }));
        let source = &plan["changes"][0]["source"];
        assert_eq!((&source["live"], &source["sequence_number"]), (&json!(false), &json!(7)));
        assert_eq!((&plan["changes"][2]["source"], &plan["changes"][2]["effect"]), (&Value::Null, &json!("no_change")));
    }
}

mod failures {
    use super::*;

    #[tokio::test]
    async fn a_wrong_command_line_ends_with_64() {
        let (_fleet, program) = published().await;
        program.write("other.csv", "other,0,1\n");
        for (options, message) in [
            (&["--from", "eph", "--no-hub", "--source-container", "absent"][..], "remove --no-hub"),
            (&["--from", "eph", "--file", "x.csv"], "--file is for --from kafka-csv"),
            (&["--from", "kafka-csv"], "pass --file"),
            (&["--from", "kafka-csv", "--file", "absent.csv"], "cannot read absent.csv"),
            (&["--from", "kafka-csv", "--file", "other.csv"], "no offsets of the topic \"orders\", only of: other"),
            (&["--from", "kafka-csv", "--file", "other.csv", "--prefix", "p"], "are not for --from kafka-csv"),
            (&["--from", "spark"], "invalid value"),
            (&[], "--from"),
        ] {
            let run = program.run(&[&["migrate"], options].concat()).await.ended(64);
            assert!(run.stderr.contains(message), "{options:?}: {}", run.stderr);
        }
    }

    #[tokio::test]
    async fn sources_that_are_absent_or_forbidden_end_with_1() {
        let (fleet, mut program) = published().await;
        let (_, container) = dotnet(&fleet, &[("0", 7)]).await;
        let run = program.run(&migrate("absent", &["--execute"])).await.ended(1);
        assert!(run.stderr.contains("the source: ") && run.stderr.contains("\"absent\""), "{}", run.stderr);
        let run = program.run(&migrate(&container, &["-p", "0,77"])).await.ended(64);
        assert!(run.stderr.contains("has a partition 77"), "{}", run.stderr);
        let run = program.run(&["migrate", "--from", "functions", "--source-container", &container]).await.ended(1);
        assert!(run.stderr.contains("after 'localhost/orders/$Default/'"), "{}", run.stderr);
        let run = program.run(&migrate(&container, &["--source-group", "billing"])).await.ended(1);
        assert!(run.stderr.contains("check --from, --source-container, --source-group"), "{}", run.stderr);
        // It permits listing, but not reading.
        let endpoint = azurite::shared().await.unwrap().endpoint();
        let sas = format!("BlobEndpoint={endpoint};SharedAccessSignature={}", account_sas("l", FUTURE));
        program.write("storage.txt", &sas);
        program.set("AZURE_STORAGE_CONNECTION_STRING", "@storage.txt");
        let run = program.run(&migrate(&container, &["--execute"])).await.ended(1);
        assert!(run.stderr.contains("403") && !run.stderr.contains("sig="), "{}", run.stderr);
        assert_eq!(checkpoints(&fleet).await, at(&[]));
    }
}
