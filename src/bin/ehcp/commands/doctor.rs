//! `ehcp doctor`.

use eventhubs_checkpoint::admin::{Check, Finding, GroupRecords, HubRanges, Severity};
use eventhubs_checkpoint::source::EventSource;
use eventhubs_checkpoint::{ErrorKind, PartitionId};
use serde::Serialize;
use tokio::time::sleep;

use crate::args::{DoctorArgs, Format, Global};
use crate::connection::GroupConnection;
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table, Tone, print_text, printable_text};
use crate::progress::Progress;
use crate::text::{format_count, join_ranges, or_empty};

const COLUMNS: &[Column] = &[
    Column::text("CHECK"),
    Column::text("RESULT"),
    Column::text("PARTITIONS"),
    Column::text("DETAIL"),
    Column::text("REMEDY"),
];

/// The checks of the connections, which come before the checks of the records.
const STORAGE: &str = "storage";
const STORAGE_WRITE: &str = "storage-write";
const HUB: &str = "hub";

const OK: &str = "ok";
const SKIPPED: &str = "skipped";

#[derive(Serialize)]
struct CheckRow {
    check: String,
    /// `ok`, `skipped`, `info`, `warning` or `error`.
    result: String,
    partitions: Vec<PartitionId>,
    detail: String,
    remedy: Option<String>,
}

impl CheckRow {
    fn ok(check: &str, detail: impl Into<String>) -> Self {
        Self {
            check: check.to_owned(),
            result: OK.to_owned(),
            partitions: Vec::new(),
            detail: detail.into(),
            remedy: None,
        }
    }

    /// A connection that failed. The role is the remedy if the service rejects the caller.
    fn failed(check: &str, failure: &Failure, role: &str) -> Self {
        let remedy = match failure.kind() {
            Some(ErrorKind::Unauthorized) => role,
            Some(ErrorKind::ContainerNotFound) => "create the container, or check --container and --account",
            Some(ErrorKind::Config | ErrorKind::InvalidArgument) => "check the names and the connection string",
            Some(ErrorKind::Throttled { .. }) => "wait, and raise the throughput if it happens again",
            _ => "check the names, the network, the firewall and its private endpoints",
        };
        Self::new(check, Severity::Error, failure.to_string(), remedy)
    }

    fn new(check: &str, severity: Severity, detail: impl Into<String>, remedy: &str) -> Self {
        Self { result: severity.to_string(), remedy: Some(remedy.to_owned()), ..Self::ok(check, detail) }
    }
}

#[derive(Serialize)]
struct DoctorDocument<'a> {
    schema: &'static str,
    checks: &'a [CheckRow],
}

pub async fn run(global: &Global, doctor: &DoctorArgs) -> Result<Exit> {
    check_names(doctor, global.no_hub)?;
    let connection = GroupConnection::resolve(global)?;
    let mut rows = Vec::new();
    let records = check_storage(&connection, &mut rows).await;
    if doctor.write_probe {
        rows.extend(check_storage_writes(&connection).await);
    }
    let hub = check_hub(&connection, &mut rows).await;
    if let Some(records) = &records {
        let findings = diagnose(&connection, records, hub.as_ref(), doctor).await;
        rows.extend(finding_rows(&findings, hub.is_some()));
    }
    rows.retain(|row| is_wanted(row, &doctor.only));
    show_checks(global, &rows)?;
    let has_finding = rows.iter().any(|row| row.result == "warning" || row.result == "error");
    Ok(if has_finding { Exit::Differences } else { Exit::Done })
}

/// Returns whether a row is shown: also a failure that leaves a wanted check undone.
fn is_wanted(row: &CheckRow, only: &[String]) -> bool {
    let has_check_of_records = only.iter().any(|name| ![STORAGE, STORAGE_WRITE, HUB].contains(&name.as_str()));
    let is_missing_connection = row.result == "error" && (row.check == STORAGE || row.check == HUB);
    only.is_empty() || only.contains(&row.check) || (is_missing_connection && has_check_of_records)
}

fn check_names(doctor: &DoctorArgs, no_hub: bool) -> Result<()> {
    let only = &doctor.only;
    if only.iter().any(|name| name == STORAGE_WRITE) && !doctor.write_probe {
        return Err(Failure::usage("storage-write writes a blob: add --write-probe"));
    }
    if no_hub && let Some(name) = only.iter().find(|name| *name == HUB || needs_hub(name)) {
        return Err(Failure::usage(format!("{name} needs the event hub: remove --no-hub")));
    }
    let known: Vec<_> =
        [STORAGE, STORAGE_WRITE, HUB].into_iter().chain(Check::ALL.iter().map(|check| check.as_str())).collect();
    match only.iter().find(|name| !known.contains(&name.as_str())) {
        Some(unknown) => Err(Failure::usage(format!("{unknown:?} is no check: use one of {}", known.join(", ")))),
        None => Ok(()),
    }
}

async fn check_storage(connection: &GroupConnection, rows: &mut Vec<CheckRow>) -> Option<GroupRecords> {
    const ROLE: &str = "grant Storage Blob Data Reader on the container";
    let read = async { Ok::<_, Failure>(connection.connect_reader().await?.read().await?) };
    match read.await {
        Ok(records) => {
            let state = records.describe(None).group.state;
            rows.push(CheckRow::ok(
                STORAGE,
                format!("container {:?}: the group is {state}", connection.container_name),
            ));
            Some(records)
        }
        Err(failure) => {
            rows.push(CheckRow::failed(STORAGE, &failure, ROLE));
            None
        }
    }
}

/// Writes, lists and deletes a blob that no member reads.
async fn check_storage_writes(connection: &GroupConnection) -> Vec<CheckRow> {
    const ROLE: &str = "grant Storage Blob Data Contributor on the container to the members";
    match connection.connect_store("ehcp").await {
        Ok(store) if store.storage_warnings().is_empty() => {
            vec![CheckRow::ok(STORAGE_WRITE, "conditional writes, metadata in listings, deletion")]
        }
        Ok(store) => store
            .storage_warnings()
            .iter()
            .map(|warning| {
                let advice = warning.advice();
                let (detail, remedy) = advice.split_once(": ").unwrap_or((&advice, "see docs/storage.md"));
                CheckRow::new(STORAGE_WRITE, Severity::Warning, detail, remedy)
            })
            .collect(),
        Err(failure) => vec![CheckRow::failed(STORAGE_WRITE, &failure, ROLE)],
    }
}

async fn check_hub(connection: &GroupConnection, rows: &mut Vec<CheckRow>) -> Option<HubRanges> {
    const ROLE: &str = "grant Azure Event Hubs Data Receiver on the event hub";
    if connection.global.no_hub {
        return None;
    }
    let read = async {
        let source = connection.require_hub().await?;
        let ranges = connection.read_ranges(&source).await?;
        // A rejected reader shows that the group exists.
        let access = match ranges.partitions().next() {
            Some(partition) => connection.within_timeout(source.check_access(partition)).await?,
            None => Ok(()),
        };
        match access {
            Err(error) if error.kind() == ErrorKind::Fenced => Ok(ranges),
            access => access.map(|()| ranges).map_err(Failure::from),
        }
    };
    match read.await {
        Ok(ranges) => {
            let partitions = format_count(ranges.partitions().count(), "partition");
            rows.push(CheckRow::ok(HUB, format!("{}: {partitions}", connection.group)));
            Some(ranges)
        }
        Err(failure) => {
            rows.push(CheckRow::failed(HUB, &failure, ROLE));
            None
        }
    }
}

/// Finds what is wrong. If a partition seems to be stuck, a second look decides: its events may have arrived just now.
async fn diagnose(
    connection: &GroupConnection,
    records: &GroupRecords,
    hub: Option<&HubRanges>,
    doctor: &DoctorArgs,
) -> Vec<Finding> {
    let findings = records.diagnose(hub, doctor.stuck_after);
    let stuck = findings.iter().any(|finding| finding.check == Check::StuckPartition);
    let is_wanted = doctor.only.is_empty() || doctor.only.iter().any(|name| name == Check::StuckPartition.as_str());
    if !stuck || !is_wanted || doctor.second_look.after.is_zero() {
        return findings;
    }
    let _progress = Progress::spinner("looking again at partitions that seem to be stuck");
    sleep(doctor.second_look.after).await;
    let second = async {
        let later = connection.connect_reader().await?.read().await?;
        let ranges = connection.read_ranges(&connection.require_hub().await?).await?;
        Ok::<_, Failure>(later.diagnose_again(&records.describe(hub), Some(&ranges), doctor.stuck_after))
    };
    second.await.unwrap_or_else(|failure| with_one_look(findings, &failure))
}

/// Returns the findings of the first look, and says where a second one was to decide.
fn with_one_look(mut findings: Vec<Finding>, failure: &Failure) -> Vec<Finding> {
    for stuck in findings.iter_mut().filter(|finding| finding.check == Check::StuckPartition) {
        stuck.detail = format!("{}, at one look: the second one failed: {failure}", stuck.detail);
    }
    findings
}

/// Returns whether a check compares the records with the event hub.
fn needs_hub(check: &str) -> bool {
    [
        Check::ExpiredCheckpoint,
        Check::CheckpointBeyondEnd,
        Check::CheckpointOfFormerHub,
        Check::StuckPartition,
        Check::OrphanRecord,
        Check::IdleMembers,
    ]
    .iter()
    .any(|known| known.as_str() == check)
}

/// Adds the partitions of a finding to the commands in its remedy, so that a copied command concerns no others.
fn name_partitions(remedy: &str, partitions: &[PartitionId]) -> String {
    if partitions.is_empty() {
        return remedy.to_owned();
    }
    let named = join_ranges(partitions);
    ["delete", "import", "peek", "release", "reset", "resume"].into_iter().fold(remedy.to_owned(), |text, command| {
        text.replace(&format!("`ehcp {command}"), &format!("`ehcp {command} -p {named}"))
    })
}

/// Returns a row for each finding, and one for each check without any.
fn finding_rows(findings: &[Finding], has_hub: bool) -> Vec<CheckRow> {
    let found = findings.iter().map(|finding| CheckRow {
        check: finding.check.to_string(),
        result: finding.severity.to_string(),
        partitions: finding.partitions.clone(),
        detail: finding.detail.clone(),
        remedy: Some(name_partitions(finding.remedy, &finding.partitions)),
    });
    let clean = Check::ALL.iter().filter(|check| findings.iter().all(|finding| finding.check != **check));
    found
        .chain(clean.map(|check| {
            if has_hub || !needs_hub(check.as_str()) {
                return CheckRow::ok(check.as_str(), "");
            }
            CheckRow { result: SKIPPED.to_owned(), ..CheckRow::ok(check.as_str(), "it needs the event hub") }
        }))
        .collect()
}

/// Shows the findings, then the checks without any and those that were skipped, on one line each.
fn show_checks(global: &Global, rows: &[CheckRow]) -> Result<()> {
    if global.output != Format::Table {
        return show_table(global, rows);
    }
    let mut lines = Vec::new();
    for CheckRow { check, result, partitions, detail, remedy } in
        rows.iter().filter(|row| row.result != OK && row.result != SKIPPED)
    {
        let partitions = match partitions.as_slice() {
            [] => String::new(),
            partitions => format!(" in {}", join_ranges(partitions)),
        };
        lines.push(format!("{result:<8}{check}{partitions}: {}\n", printable_text(detail)));
        lines.extend(remedy.iter().map(|remedy| format!("        -> {remedy}\n")));
    }
    for result in [OK, SKIPPED] {
        let checks: Vec<_> = rows.iter().filter(|row| row.result == result).map(|row| row.check.as_str()).collect();
        if !checks.is_empty() {
            lines.push(format!("{result:<8}{}\n", checks.join(", ")));
        }
    }
    print_text(&lines.concat())
}

fn show_table(global: &Global, rows: &[CheckRow]) -> Result<()> {
    let mut table = Table::new(COLUMNS);
    for row in rows {
        let cells = [
            row.check.clone(),
            row.result.clone(),
            join_ranges(&row.partitions),
            row.detail.clone(),
            or_empty(row.remedy.as_ref()),
        ];
        let tone = match row.result.as_str() {
            OK => Tone::Good,
            "warning" => Tone::Warning,
            "error" => Tone::Bad,
            _ => Tone::Plain,
        };
        table.add_row_in_tone(cells, tone);
    }
    Output::new(global).show_document(&DoctorDocument { schema: "ehcp.doctor/1", checks: rows }, rows, &table)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;
    use crate::watching::tests::{Group, ranges};

    #[tokio::test(start_paused = true)]
    async fn a_failed_second_look_keeps_the_findings() {
        let group = Group::new().await;
        group.owned("a", 9).await;
        advance(Duration::from_secs(10)).await;
        let findings = group.operator.read().await.unwrap().diagnose(Some(&ranges(19)), Duration::ZERO);
        assert_eq!(findings[0].check, Check::StuckPartition);
        let kept = with_one_look(findings.clone(), &Failure::failed("no storage"));
        assert_eq!(kept[0].detail, findings[0].detail.clone() + ", at one look: the second one failed: no storage");
        assert_eq!(kept.len(), findings.len());
    }

    #[test]
    fn the_page_has_a_criterion_for_every_check() {
        let page =
            std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/ehcp.md")).unwrap();
        let row = |check: &str| {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{check}` | ")));
            let cells: Vec<_> =
                row.unwrap_or_default().split(" | ").map(|cell| cell.trim_matches(['|', ' '])).collect();
            (cells.get(1).map(ToString::to_string), cells.last().map(ToString::to_string))
        };
        for check in Check::ALL {
            let hub = if needs_hub(check.as_str()) { "yes" } else { "" };
            assert_eq!(row(check.as_str()), (Some(check.severity().to_string()), Some(hub.to_owned())), "{check}");
        }
        for check in [STORAGE, STORAGE_WRITE, HUB] {
            assert_eq!(row(check).0.as_deref(), Some("error"), "{check}");
        }
    }
}
