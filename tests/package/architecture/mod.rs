//! The direction of dependencies, the limits of the pure parts, and the documentation for operators: read from the
//! source.

mod import_cycles;
mod methods;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use import_cycles::Crate;

/// What each top-level module may use of the others. An arrow that is not listed must not appear by accident.
const ARROWS: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("codec", &["model"]),
    ("planner", &["error", "model"]),
    ("backoff", &[]),
    ("util", &["error", "model"]),
    ("error", &["model"]),
    ("clock", &[]),
    ("telemetry", &["codec", "error", "model", "util"]),
    ("blob", &["backoff", "clock", "error", "model", "telemetry", "util"]),
    ("store", &["backoff", "blob", "clock", "codec", "error", "model", "telemetry", "util"]),
    ("source", &["error", "model", "telemetry", "util"]),
    ("admin", &["backoff", "blob", "clock", "codec", "error", "model", "planner", "source", "store", "util"]),
    ("balancer", &["backoff", "planner", "clock", "error", "model", "store", "telemetry", "util"]),
    ("processor", &["backoff", "balancer", "clock", "error", "model", "source", "store", "telemetry", "util"]),
    ("cost", &["balancer", "model", "processor", "store", "telemetry"]),
    ("eventhubs", &["backoff", "blob", "clock", "error", "model", "processor", "source", "store", "telemetry", "util"]),
];

/// Modules that may use everything, and that no other module uses. `bin` is a crate of its own, and `tests` is input
/// for unit tests.
const FREE: &[&str] = &["testing", "tests", "internal", "lib", "bin"];

fn sources() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(&root).unwrap().to_owned();
                // Unit tests may use everything.
                if relative.ends_with("tests.rs") {
                    continue;
                }
                let first = relative.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
                found.push((first.trim_end_matches(".rs").to_owned(), relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 20, "the source has moved");
    found
}

/// Lines of code, without comments and without the unit tests at the end. `#[cfg(test)] mod tests;` is not the end.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let tests = text.match_indices("\n#[cfg(test)]\n").find(|(at, attribute)| {
        let item = text[at + attribute.len()..].lines().next().unwrap_or_default();
        item.contains("mod ") && item.ends_with('{')
    });
    let product = tests.map_or(text, |(at, _)| &text[..at]);
    product.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn dependencies_point_one_way() {
    let arrows: BTreeMap<_, BTreeSet<_>> =
        ARROWS.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect();
    for (module, path, text) in sources() {
        if FREE.contains(&module.as_str()) {
            continue;
        }
        let allowed = arrows.get(module.as_str()).unwrap_or_else(|| panic!("{path:?} has no arrows: add some"));
        for line in code(&text) {
            for used in line.split("crate::").skip(1) {
                let used: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                let known = arrows.contains_key(used.as_str()) || FREE.contains(&used.as_str());
                assert!(
                    !known || used == module || allowed.contains(used.as_str()),
                    "{path:?} uses {used}, to which no arrow leads: {line}"
                );
            }
            assert!(!line.contains("use crate::{"), "{path:?}: name the module that is used: {line}");
        }
    }
}

#[test]
fn no_two_files_need_each_other() {
    let sources = sources();
    let (tool, library): (Vec<_>, Vec<_>) = sources.iter().partition(|(module, _, _)| module == "bin");
    let library = library.into_iter().map(|(_, path, text)| (path.as_path(), text.as_str()));
    assert_eq!(Crate::parse(library).circles(), [""; 0]);
    let tool = tool.into_iter().map(|(_, path, text)| (path.strip_prefix("bin/ehcp").unwrap(), text.as_str()));
    assert_eq!(Crate::parse(tool).circles(), [""; 0]);
}

#[test]
fn no_two_files_of_a_type_call_each_other() {
    let sources = sources();
    let files = sources.iter().map(|(_, path, text)| (path.as_path(), text.as_str()));
    assert_eq!(methods::mutual_pairs(files), [""; 0]);
}

/// The decisions of an operator, of a balancing loop, and of a partition that is processed; what a screen shows.
const PURE_FILES: &[&str] = &[
    "admin/doctor.rs",
    "admin/export.rs",
    "admin/group_description.rs",
    "admin/keda.rs",
    "admin/migrate/checkpoint.rs",
    "admin/new_position.rs",
    "admin/partition_description.rs",
    "admin/plan.rs",
    "admin/takeover.rs",
    "balancer/handoffs.rs",
    "balancer/claims.rs",
    "balancer/config.rs",
    "balancer/context.rs",
    "balancer/cycle.rs",
    "balancer/lease.rs",
    "balancer/lease_record.rs",
    "balancer/listing.rs",
    "balancer/pacing.rs",
    "balancer/partitions.rs",
    "balancer/heartbeat.rs",
    "balancer/release.rs",
    "balancer/renewals.rs",
    "balancer/state.rs",
    "balancer/step.rs",
    "processor/checkpoints/tracker.rs",
    "processor/partition/machine.rs",
    "processor/partition/stall_detector.rs",
    "processor/start/invalid.rs",
    "source/properties.rs",
    "bin/ehcp/screen/columns.rs",
    "bin/ehcp/screen/condition.rs",
    "bin/ehcp/screen/detail.rs",
    "bin/ehcp/screen/events.rs",
    "bin/ehcp/screen/figures.rs",
    "bin/ehcp/screen/headline.rs",
    "bin/ehcp/screen/keys.rs",
    "bin/ehcp/screen/pages.rs",
    "bin/ehcp/screen/row.rs",
    "bin/ehcp/screen/state.rs",
    "bin/ehcp/watching/changes.rs",
    "bin/ehcp/watching/history.rs",
];

#[test]
fn the_pure_parts_use_no_runtime_clock_or_storage() {
    for (module, path, text) in sources() {
        let is_pure = PURE_FILES.iter().any(|pure| path.ends_with(pure)) || path.starts_with("store/rules");
        if !is_pure && !["backoff", "model", "codec", "planner"].contains(&module.as_str()) {
            continue;
        }
        for line in code(&text) {
            for word in ["tokio", "async ", "Instant", "SystemTime", "now_utc", "azure_"] {
                assert!(!line.contains(word), "{path:?} must be pure: {line}");
            }
        }
    }
}

#[test]
fn only_one_folder_uses_the_official_client() {
    for (module, path, text) in sources() {
        let named = code(&text).find(|line| line.contains("azure_messaging_eventhubs"));
        // The crate page shows it, the tool shows events, and the memory hub converts its events.
        let may_use =
            ["eventhubs", "lib", "bin"].contains(&module.as_str()) || path.ends_with("memory_hub/received.rs");
        assert!(may_use || named.is_none(), "{path:?} uses the official client: {named:?}");
    }
}

/// In addition to the lint that forbids reading the wall clock elsewhere: the modules that may use the port. The
/// verification compares clocks, a signature has a date, a new token has an expiry, and the official processor compares
/// its input with its own clock. Decisions about ownership use only the server's time.
#[test]
fn only_listed_modules_read_the_local_time() {
    let store = ["store/builder.rs", "store/verify.rs"];
    let azure = [
        "blob/memory.rs",
        "blob/azure/access.rs",
        "blob/azure/builder.rs",
        "blob/azure/client.rs",
        "blob/azure/container.rs",
        "blob/azure/shared_key.rs",
        "blob/azure/token.rs",
    ];
    let eventhubs =
        ["eventhubs/adapter/checkpoint_store.rs", "eventhubs/adapter/groups.rs", "eventhubs/credentials.rs"];
    let asking: BTreeSet<_> = store.into_iter().chain(azure).chain(eventhubs).map(PathBuf::from).collect();
    for (module, path, text) in sources() {
        if module == "clock" || module == "testing" {
            continue;
        }
        for line in code(&text) {
            for word in ["SystemTime", "UtcDateTime", "now_utc", "now_local"] {
                assert!(!line.contains(word), "{path:?} reads the wall clock without the port: {line}");
            }
            let reads_clock = line.contains("WallClock") || line.contains("wall_clock");
            assert!(!reads_clock || asking.contains(&path), "{path:?} reads the local time: {line}");
        }
    }
}

/// The files in which log events are named.
fn is_telemetry(module: &str) -> bool {
    module == "telemetry"
}

/// Returns the texts of more than one word that begin in lower case. Lines that are continued are joined.
fn sentences(text: &str) -> Vec<String> {
    let lines = code(text).filter(|line| !line.trim_start().starts_with("#["));
    let code: String = lines.fold(String::new(), |all, line| match all.strip_suffix("\\\n") {
        Some(continued) => format!("{continued}{}\n", line.trim_start()),
        None => format!("{all}{line}\n"),
    });
    let texts = code.lines().flat_map(|line| line.split('"').skip(1).step_by(2));
    let is_sentence = |text: &&str| text.contains(' ') && text.starts_with(|first: char| first.is_ascii_lowercase());
    texts.filter(is_sentence).map(str::to_owned).collect()
}

#[test]
fn every_log_event_and_metric_is_documented() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let logs = fs::read_to_string(docs.join("logs.md")).unwrap();
    let metrics = fs::read_to_string(docs.join("metrics.md")).unwrap();
    let telemetry = sources().into_iter().filter(|(module, _, _)| is_telemetry(module));
    let events: Vec<_> = telemetry.flat_map(|(_, _, text)| sentences(&text)).collect();
    assert!(events.len() > 60 && events.iter().all(|event| !event.ends_with('\\')), "{events:?}");
    for event in &events {
        assert!(logs.contains(&format!("`{event}`")), "docs/logs.md does not explain the log event {event:?}");
    }
    for metric in eventhubs_checkpoint::metrics::ALL {
        assert!(metrics.contains(&format!("`{}`", metric.name)), "docs/metrics.md does not explain {}", metric.name);
    }
    let is_row = |line: &&str| ["| error", "| warn", "| info", "| debug"].iter().any(|level| line.starts_with(level));
    let documented = logs.lines().filter(is_row).filter_map(|line| line.split(" | `").nth(1)?.split_once('`'));
    for (event, _) in documented {
        assert!(events.iter().any(|known| known == event), "docs/logs.md explains {event:?}, which is no event");
    }
}

/// So that all events are found together, with a target, and documented.
#[test]
fn log_events_are_named_in_telemetry() {
    for (module, path, text) in sources() {
        let is_event =
            |line: &&str| ["trace!(", "debug!(", "info!(", "warn!(", "error!("].iter().any(|it| line.contains(it));
        if is_telemetry(&module) {
            let events = text.matches("target: ").count();
            let lines = code(&text).filter(is_event).count();
            assert!(lines <= events, "{path:?} has an event without a target");
        } else if module != "testing" {
            assert_eq!(code(&text).find(is_event), None, "{path:?} has a log event: move it into telemetry");
        }
    }
}
