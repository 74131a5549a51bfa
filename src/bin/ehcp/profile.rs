//! Named settings, in a file. They contain no secrets.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use etcetera::{BaseStrategy, choose_base_strategy};
use serde::{Deserialize, Serialize};

use crate::args::ConnectionSettings;
use crate::exit::{Failure, Result};

/// The file of profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profiles {
    /// The one that is used if none is named.
    pub default: Option<String>,
    #[serde(default)]
    pub profiles: BTreeMap<String, ConnectionSettings>,
}

impl Profiles {
    /// Returns `$XDG_CONFIG_HOME/ehcp/config.toml`, or its equivalent on other systems.
    fn file() -> Result<PathBuf> {
        let strategy = choose_base_strategy().map_err(|error| Failure::failed(error.to_string()))?;
        Ok(strategy.config_dir().join("ehcp").join("config.toml"))
    }

    /// Reads the file. Without one, there are no profiles.
    pub fn read() -> Result<Self> {
        // A service may have no home folder, and needs no profile.
        let Ok(file) = Self::file() else { return Ok(Self::default()) };
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(|error| Failure::failed(format!("cannot read {}: {error}", file.display())))?,
        };
        toml::from_str(&text).map_err(|error| {
            Failure::usage(format!("{} is not a file of profiles: {}", file.display(), error.message()))
        })
    }

    pub fn write(&self) -> Result<()> {
        let file = Self::file()?;
        let failed =
            |error: &dyn std::fmt::Display| Failure::failed(format!("cannot write {}: {error}", file.display()));
        let text = toml::to_string_pretty(self).map_err(|error| failed(&error))?;
        file.parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&file, text))
            .map_err(|error| failed(&error))
    }

    /// Returns the profile with this name, the default one without a name, or an empty one.
    pub fn select(&self, name: Option<&str>) -> Result<ConnectionSettings> {
        let Some(name) = name.or(self.default.as_deref()) else { return Ok(ConnectionSettings::default()) };
        self.profiles.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = self.profiles.keys().map(String::as_str).collect();
            Failure::usage(if known.is_empty() {
                format!("there is no profile {name:?}: `ehcp profile add` creates one")
            } else {
                format!("there is no profile {name:?}: the profiles are {known:?}")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sections and settings, some of them unknown or of another type.
    const FILES: &str = r#"(default = "[a-z]{0,5}"
)?(\[profiles\.("[ -!#-\[\]-~]{1,6}"|[a-z]{1,5})\]
((namespace|event_hub|account|auth|blob_name_case|foreign_lease_duration|key) = ("[a-z0-9. ]{0,9}"|'[ -&(-~]{0,9}'|[0-9.]{1,4}|\[\])
){0,3}){0,3}|\PC{0,60}"#;

    proptest! {
        #[test]
        fn any_file_is_read_or_rejected(text in FILES) {
            let Ok(read) = toml::from_str::<Profiles>(&text) else { return Ok(()) };
            let again: Profiles = toml::from_str(&toml::to_string_pretty(&read).unwrap()).unwrap();
            prop_assert_eq!(again, read);
        }
    }
}
