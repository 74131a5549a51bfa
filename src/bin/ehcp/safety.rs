//! What every command that writes does first: it refuses live owners, and saves the checkpoints in a file.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::future::pending;
use std::io::Write;
use std::path::{Path, PathBuf};

use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::admin::describe::{GroupDescription, OwnerDescription, Sdk};
use eventhubs_checkpoint::admin::{Export, ResetError};
use eventhubs_checkpoint::store::NameCase;

use crate::args::{CaseArg, Global};
use crate::commands::positions::to_json;
use crate::exit::{Exit, Failure, Result};
use crate::output::print_note;
use crate::text::{format_duration, format_time};

/// Shows that nothing was written, and whether it is permitted.
pub fn note_dry_run(changes: usize, what: &str, permitted: Result<()>) {
    match permitted {
        _ if changes == 0 => print_note("dry run: nothing to do"),
        Ok(()) => print_note(format_args!("dry run: would {what}; add --execute to do it")),
        Err(refusal) => print_note(format_args!("dry run: would {what}, but --execute would be refused: {refusal}")),
    }
}

/// Shows a command that undoes what was done, with the same connection, under names in this blob-name casing.
pub fn show_undo(global: &Global, case: NameCase, command: &str) {
    let mut global = global.clone();
    // `auto` may choose the other casing if this was the last record.
    if global.settings.blob_name_case.unwrap_or_default() == CaseArg::Auto && case == NameCase::Verbatim {
        global = global.with_options(&[("--blob-name-case", "verbatim")]);
    }
    let words: Vec<_> = std::iter::once(command).chain(global.given.iter().map(String::as_str)).collect();
    print_note(format_args!("undo: ehcp {}", words.join(" ")));
}

/// Ends with the first Ctrl-C or SIGTERM. What is being written is then finished first. A second one ends the program.
pub async fn wait_for_interrupt() {
    /// The exit code of a program that SIGINT ended, by the convention of shells.
    const INTERRUPTED: i32 = 130;
    wait_for_stop_signal().await;
    print_note("stopping: what is being written is finished first");
    tokio::spawn(async {
        wait_for_stop_signal().await;
        std::process::exit(INTERRUPTED);
    });
}

/// Ends with a signal. Signals that cannot be handled end the program.
pub async fn wait_for_stop_signal() {
    let interrupted = async {
        if tokio::signal::ctrl_c().await.is_err() {
            pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminated) => drop(terminated.recv().await),
            Err(_) => pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
}

/// The permission to take partitions from live owners.
#[derive(Clone, Copy, Debug)]
pub struct DisplacePermission {
    pub live: bool,
    pub foreign: bool,
}

/// Fails if a partition has a live owner that the command line does not permit to displace.
pub fn check_live<'a>(
    owned: impl IntoIterator<Item = (&'a PartitionId, &'a OwnerDescription)>,
    allowed: DisplacePermission,
) -> Result<()> {
    for (partition, owner) in owned {
        let expires = format_duration(owner.expires_in);
        let OwnerDescription { id, .. } = owner;
        match owner.sdk {
            Sdk::ThisCrate if !allowed.live => {
                return Err(Failure::refused(format!(
                    "{id} is processing partition {partition}, and its lease is valid for {expires}: stop it, or displace it \
                     with --live"
                )));
            }
            Sdk::Other if !allowed.foreign => {
                return Err(Failure::refused(format!(
                    "{id}, an owner of another SDK, is processing partition {partition}, and its lease is valid for \
                     {expires}: stop it, because it may undo this; or use --live --force"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns how a command ends that left a partition alone for this reason.
pub fn exit_of(reason: &ResetError) -> Exit {
    match reason {
        ResetError::Foreign { .. } | ResetError::Live { .. } | ResetError::OwnPosition => Exit::Refused,
        _ => Exit::Failed,
    }
}

/// The checkpoints as they were.
pub struct Backup {
    pub file: PathBuf,
    /// The group with the saved partitions alone.
    pub group: GroupDescription,
}

impl Backup {
    pub fn name_case(&self) -> NameCase {
        self.group.group.blob_name_case
    }
}

/// Saves the checkpoints of these partitions in a new file: its import changes no others.
pub fn back_up(mut group: GroupDescription, partitions: &BTreeSet<&PartitionId>, folder: &Path) -> Result<Backup> {
    group.partitions.retain(|partition| partitions.contains(&partition.id));
    Ok(Backup {
        file: save_checkpoints(&group, folder).map_err(|failure| failure.context("nothing was done: no backup"))?,
        group,
    })
}

/// Saves the checkpoints in a new file, named by the group and the time.
pub fn save_checkpoints(group: &GroupDescription, folder: &Path) -> Result<PathBuf> {
    let text = to_json(&Export::from(group))?;
    let summary = &group.group;
    let name: String = format!("{}-{}", summary.event_hub, summary.consumer_group)
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '_' })
        .collect();
    let stem = format!("ehcp-{name}-{}", format_time(group.taken_at).replace([':', '-'], ""));
    for number in 1.. {
        let name = if number == 1 { format!("{stem}.json") } else { format!("{stem}-{number}.json") };
        let file = if folder == Path::new(".") { name.into() } else { folder.join(name) };
        match OpenOptions::new().write(true).create_new(true).open(&file) {
            Ok(mut created) => {
                return match created.write_all(text.as_bytes()).and_then(|()| created.sync_all()) {
                    Ok(()) => Ok(file),
                    Err(error) => Err(cannot_write(&file, &error)),
                };
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot_write(&file, &error)),
        }
    }
    unreachable!("there is always another number")
}

fn cannot_write(file: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", file.display()))
}
