//! Which names of blobs the SDK can carry.

use azure_core_legacy::Url;
use percent_encoding::percent_decode_str;

use crate::blob::validation::check_blob_name;
use crate::error::{Error, ErrorKind, Result};

/// Refuses a name that would reach another blob, or that a listing would show as another one.
///
/// The SDK cuts slashes off both ends of a name, leaves out segments `.` and `..`, tabs and line breaks, and trims what
/// a listing shows. What it makes of the name is compared with what it should be, so no rule of it is copied here.
pub(super) fn check_address(container: &Url, blob: &Url, name: &str) -> Result<()> {
    check_blob_name(name)?;
    let expected = format!("{}/{name}", decoded(container));
    if decoded(blob) != expected {
        return Err(refused(name, "it cuts slashes off the ends and leaves out segments . and .."));
    }
    if name.trim() != name {
        return Err(refused(name, "its listings show names without spaces at the ends"));
    }
    Ok(())
}

fn decoded(url: &Url) -> String {
    percent_decode_str(url.path()).decode_utf8_lossy().into_owned()
}

fn refused(name: &str, why: &str) -> Error {
    let message = format!("azure_storage_blobs cannot carry the blob name {name:?}: {why}; use blob::azure for it");
    Error::new(ErrorKind::Rejected, message)
}

/// As much of a prefix as the SDK sends unchanged. It writes a space as `+`, which the service takes for a plus sign;
/// the rest is left to whoever looks through the answer.
pub(super) fn prefix_to_ask_for(prefix: &str) -> Option<String> {
    prefix.split(' ').next().filter(|part| !part.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use azure_storage_blobs::prelude::ClientBuilder;

    use super::*;

    fn check(name: &str) -> Result<()> {
        let container = ClientBuilder::emulator().container_client("leases");
        check_address(&container.url().unwrap(), &container.blob_client(name).url().unwrap(), name)
    }

    #[test]
    fn names_that_arrive_as_they_are_pass() {
        for name in ["ns/hub/$Default/ownership/0", "a//b", "percent%41%2F%", "größe/日本語", "a b?c#d", "...", r"a\b"]
        {
            check(name).unwrap();
        }
    }

    #[test]
    fn names_that_would_reach_another_blob_are_refused_by_name() {
        for name in
            ["a/../b", "a/./b", "ends/", "/begins", "../begins", "ends/..", "tab\tin", "line\nbreak", " a", "a "]
        {
            let error = check(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Rejected);
            assert!(error.to_string().contains(&format!("{name:?}")), "{error}");
        }
    }

    #[test]
    fn a_prefix_is_asked_for_up_to_its_first_space() {
        for (prefix, asked) in [("ns/$Default/", Some("ns/$Default/")), ("a b/c", Some("a")), (" a", None), ("", None)]
        {
            assert_eq!(prefix_to_ask_for(prefix).as_deref(), asked);
        }
    }
}
