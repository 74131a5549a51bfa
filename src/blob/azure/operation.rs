//! What a request does, and to what.

use std::fmt;

/// A request to the service. `Display` writes the beginning of its errors.
#[derive(Clone, Copy, Debug)]
pub(in crate::blob) struct Operation<'a> {
    pub(in crate::blob) verb: Verb,
    /// The blob, or the prefix of a listing.
    pub(in crate::blob) name: &'a str,
    pub(in crate::blob) container: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::blob) enum Verb {
    List,
    Get,
    Write,
    Delete,
    CreateContainer,
}

impl Verb {
    /// Returns whether the outcome of a request without a response is unknown.
    pub(super) fn changes_something(self) -> bool {
        !matches!(self, Self::List | Self::Get)
    }
}

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, name, container } = self;
        match verb {
            Verb::List => write!(f, "listing blobs with prefix {name:?} in container {container:?}"),
            Verb::Get => write!(f, "reading blob {name:?} in container {container:?}"),
            Verb::Write => write!(f, "writing blob {name:?} in container {container:?}"),
            Verb::Delete => write!(f, "deleting blob {name:?} in container {container:?}"),
            Verb::CreateContainer => write!(f, "creating container {container:?}"),
        }
    }
}
