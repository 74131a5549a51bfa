//! The letter case of blob names. If the name of a group contains capitals, some SDKs use blob names in lower case, and
//! others the names as given. `$Default` is such a name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How the first three segments of a blob name are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NameCase {
    /// In lower case, as the .NET, Java, JavaScript and Python processors do.
    Lower,
    /// As given, as the official Go and Rust stores do. The two cases already differ for `$Default`.
    Verbatim,
}

impl NameCase {
    /// Returns the other case, which other programs may use for the names of the same group.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Lower => Self::Verbatim,
            Self::Verbatim => Self::Lower,
        }
    }
}

/// Writes the case as it is serialized.
impl fmt::Display for NameCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Lower => "lower",
            Self::Verbatim => "verbatim",
        })
    }
}

/// Which case of the blob names a store uses. Without capitals in the names of the group, the cases are the same.
///
/// All instances of a group must use one case, because an instance does not see records under the other one. So a store
/// does not connect while the group has a live owner in the other case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BlobNameCase {
    /// The case in which the group has records. If it has none, [`Lower`](Self::Lower), which most SDKs use. If it has
    /// records in both cases: the one with live owners, else the one with the newest checkpoint, else
    /// [`Lower`](Self::Lower). The default.
    #[default]
    Auto,
    /// [Lower case](NameCase::Lower).
    Lower,
    /// [As given](NameCase::Verbatim).
    Verbatim,
}

impl BlobNameCase {
    /// Returns the case, unless the records of the group decide.
    #[must_use]
    pub fn explicit(self) -> Option<NameCase> {
        match self {
            Self::Auto => None,
            Self::Lower => Some(NameCase::Lower),
            Self::Verbatim => Some(NameCase::Verbatim),
        }
    }
}

impl From<NameCase> for BlobNameCase {
    fn from(case: NameCase) -> Self {
        match case {
            NameCase::Lower => Self::Lower,
            NameCase::Verbatim => Self::Verbatim,
        }
    }
}
