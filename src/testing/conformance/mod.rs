//! The contract of [`BlobContainer`] for every backend, one function per rule.
//!
//! [`conformance_tests!`](crate::conformance_tests) generates a test for each rule, and a program can run the [`RULES`]
//! itself. A rule panics if the backend violates it, and returns the error of a request that should have succeeded.
//!
//! If backends may differ, the rule defines how: it accepts each behavior of the service and of its emulator.
//! [`Platform`](crate::testing::faulty::Platform) gives a backend the behavior of the service.

#![expect(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    reason = "every rule panics if it is violated and returns the errors of requests, as described above"
)]

mod conditions;
mod containers;
mod listing;
mod metadata;
mod names;
mod races;
mod times;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;

use crate::blob::{BlobContainer, Condition, ETag, Metadata};
use crate::error::{ErrorKind, Result};
use crate::testing::faulty::platform::is_directory;

pub use self::conditions::*;
pub use self::containers::*;
pub use self::listing::*;
pub use self::metadata::*;
pub use self::names::*;
pub use self::races::*;
pub use self::times::*;

/// The container that a rule is checked on. Each rule has its own.
pub type Container = Arc<dyn BlobContainer>;

/// Generates a test for each rule of the contract of [`BlobContainer`](crate::blob::BlobContainer), with the name of
/// the rule.
///
/// Takes an expression that returns a [`Container`](crate::testing::conformance::Container) which **does not exist
/// yet** and is used by nothing else. It is evaluated once per test inside an async function that returns
/// [`Result<()>`](crate::Result), so it may use `await` and `?`. Each test creates its container, except those about a
/// missing container. `tokio` with the features `macros` and `rt` must be one of the dev-dependencies.
///
/// A backend with paged listings should use a page size of five blobs or fewer. Otherwise the rule about pages proves
/// nothing.
///
/// ```
/// mod memory {
///     use std::sync::Arc;
///     use eventhubs_checkpoint::blob::memory::MemoryContainer;
///
///     eventhubs_checkpoint::conformance_tests!(Arc::new(MemoryContainer::missing()));
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_tests {
    // The tests of all rules.
    (@tests ($make:expr) missing { $($missing:ident,)+ } existing { $($existing:ident,)+ }) => {
        $(
            #[tokio::test]
            async fn $missing() -> $crate::Result<()> {
                $crate::testing::conformance::$missing($make).await
            }
        )+
        $(
            #[tokio::test]
            async fn $existing() -> $crate::Result<()> {
                let container: $crate::testing::conformance::Container = $make;
                container.create_container().await?;
                $crate::testing::conformance::$existing(container).await
            }
        )+
    };
    // A table of all rules.
    (@table () missing { $($missing:ident,)+ } existing { $($existing:ident,)+ }) => {
        /// All rules, in the order of [`conformance_tests!`](crate::conformance_tests).
        pub const RULES: &[Rule] = &[
            $(Rule::new(stringify!($missing), RuleStart::MissingContainer, |it| Box::pin($missing(it))),)+
            $(Rule::new(stringify!($existing), RuleStart::EmptyContainer, |it| Box::pin($existing(it))),)+
        ];
    };
    // The one list of the rules: those whose container must be missing at the start, and those that need it.
    (@each $generate:ident ($($make:expr)?)) => {
        $crate::conformance_tests! { @$generate ($($make)?)
            missing {
                a_container_is_created_once,
                a_missing_container_is_no_missing_blob,
                every_refusal_of_a_missing_container_carries_the_servers_time,
            }
            existing {
                create_makes_a_blob,
                create_over_a_blob_is_a_conflict,
                match_replaces_a_blob,
                a_stale_match_is_a_conflict,
                a_match_never_makes_a_blob,
                a_blob_is_deleted_under_its_etag,
                a_deletion_with_a_stale_etag_is_a_conflict,
                a_missing_blob_cannot_be_deleted,
                a_deleted_blob_can_be_created_again,
                an_isolated_container_is_the_same_container,
                an_isolated_container_works_on_another_runtime,
                a_listing_has_the_blobs_with_the_prefix,
                a_prefix_may_have_any_characters,
                a_listing_is_ordered_by_name,
                a_listing_shows_what_reading_shows,
                a_listing_shows_the_latest_state,
                a_listing_of_several_pages_is_whole,
                a_listing_has_nothing_else_but_directories,
                metadata_is_replaced_as_a_whole,
                no_metadata_is_kept,
                an_empty_value_is_kept,
                keys_come_back_in_lower_case,
                keys_may_have_digits_and_underscores,
                printable_ascii_is_kept_in_values,
                unfit_metadata_is_rejected,
                names_may_have_any_characters,
                any_name_can_be_written_and_deleted,
                slippery_names_arrive_or_are_rejected,
                dots_at_the_end_of_a_segment_are_kept_rejected_or_dropped,
                names_differ_by_case,
                unfit_names_are_rejected,
                of_racing_creators_one_wins,
                of_racing_updaters_one_wins,
                of_racing_deleters_one_wins,
                of_a_writer_and_a_deleter_one_wins,
                of_racing_isolated_containers_one_wins,
                writers_of_different_blobs_all_win,
                every_answer_carries_the_servers_time,
                every_refusal_carries_the_servers_time,
                the_servers_time_is_in_whole_seconds,
                last_modified_is_the_servers_time_in_whole_seconds,
                a_blob_just_written_is_young,
                a_write_renews_last_modified,
                the_etag_is_the_same_everywhere_and_unquoted,
                the_etag_of_a_listing_matches,
                a_quoted_etag_matches_as_well,
                every_write_gives_a_new_etag,
                reading_leaves_the_etag_alone,
            }
        }
    };
    ($make:expr) => {
        $crate::conformance_tests! { @each tests ($make) }
    };
}

conformance_tests! { @each table () }

/// What a rule needs when its check begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleStart {
    /// The container does not exist.
    MissingContainer,
    /// The container exists, and has no blobs.
    EmptyContainer,
}

type Check = fn(Container) -> Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// A rule of the contract, for a program that checks a backend at run time, such as the example `live_check`.
///
/// ```
/// use std::sync::Arc;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::testing::conformance::{Container, RULES, RuleStart};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> eventhubs_checkpoint::Result<()> {
/// for rule in RULES {
///     let container: Container = match rule.start() {
///         RuleStart::MissingContainer => Arc::new(MemoryContainer::missing()),
///         RuleStart::EmptyContainer => Arc::new(MemoryContainer::new()),
///     };
///     // A violated rule panics. In a task of its own, the panic is an error of the task.
///     let checked = tokio::spawn(rule.check(container)).await;
///     assert!(matches!(checked, Ok(Ok(()))), "{}: {checked:?}", rule.name());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    name: &'static str,
    start: RuleStart,
    check: Check,
}

impl Rule {
    const fn new(name: &'static str, start: RuleStart, check: Check) -> Self {
        Self { name, start, check }
    }

    /// Returns the name, which is also the name of its function and of its test.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns what the rule needs when its check begins.
    #[must_use]
    pub fn start(&self) -> RuleStart {
        self.start
    }

    /// Checks the rule on a container that nothing else uses meanwhile. Afterwards the container may have blobs.
    pub async fn check(self, container: Container) -> Result<()> {
        (self.check)(container).await
    }
}

/// Returns metadata with these pairs.
fn metadata_of(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Returns metadata with one value, which identifies a write.
fn with_value(value: &str) -> Metadata {
    metadata_of(&[("value", value)])
}

/// Returns metadata that identifies the blob with this name. Values are ASCII, names are not.
fn metadata_for(name: &str) -> Metadata {
    with_value(&name.escape_default().to_string())
}

#[track_caller]
fn assert_refused<T: Debug>(outcome: Result<T>, kind: ErrorKind) {
    match outcome {
        Ok(success) => panic!("expected {kind:?}, but it succeeded: {success:?}"),
        Err(error) => assert_eq!(error.kind(), kind, "{error:?}"),
    }
}

/// Asserts that the blob has exactly this metadata and this version.
async fn assert_holds(container: &Container, name: &str, metadata: &Metadata, etag: &ETag) -> Result<()> {
    let blob = container.get(name).await?;
    assert_eq!((&blob.metadata, &blob.etag), (metadata, etag), "blob {name:?}");
    Ok(())
}

/// Creates blobs with these names.
async fn create_all(container: &Container, names: &[&str]) -> Result<()> {
    for name in names {
        container.write(name, &metadata_for(name), &Condition::Create).await?;
    }
    Ok(())
}

/// Returns the names of the blobs. Another rule covers the other entries of a listing.
async fn listed_names(container: &Container, prefix: &str) -> Result<Vec<String>> {
    let blobs = container.list(prefix).await?.blobs.into_iter().filter(|blob| !is_directory(blob));
    Ok(blobs.map(|blob| blob.name).collect())
}

fn sorted<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macro_runs_every_rule() {
        for file in [
            include_str!("conditions.rs"),
            include_str!("containers.rs"),
            include_str!("listing.rs"),
            include_str!("metadata.rs"),
            include_str!("names.rs"),
            include_str!("races.rs"),
            include_str!("times.rs"),
        ] {
            for rule in file.split("pub async fn ").skip(1).filter_map(|text| text.split('(').next()) {
                assert!(
                    RULES.iter().any(|listed| listed.name() == rule),
                    "{rule} is in none of the lists of conformance_tests!"
                );
            }
        }
    }
}
