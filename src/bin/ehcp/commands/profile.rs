//! `ehcp profile`.

use serde::Serialize;

use crate::args::{ConnectionSettings, Global, ProfileCommand};
use crate::exit::{Exit, Failure, Result};
use crate::output::{Column, Output, Table};
use crate::profile::Profiles;
use crate::text::or_empty;

const COLUMNS: &[Column] = &[
    Column::text("DEFAULT"),
    Column::text("NAME"),
    Column::text("NAMESPACE"),
    Column::text("EVENT-HUB"),
    Column::text("GROUP"),
    Column::text("ACCOUNT"),
    Column::text("CONTAINER"),
    Column::text("READ-GROUP").wide(),
    Column::text("FOREIGN-LEASE-DURATION").wide(),
];

#[derive(Serialize)]
struct ProfilesDocument<'a> {
    schema: &'static str,
    profiles: &'a [ProfileRow<'a>],
}

#[derive(Serialize)]
struct ProfileRow<'a> {
    name: &'a str,
    is_default: bool,
    #[serde(flatten)]
    profile: &'a ConnectionSettings,
}

pub fn run(global: &Global, command: ProfileCommand) -> Result<Exit> {
    let mut profiles = Profiles::read()?;
    match command {
        ProfileCommand::List => return show_profiles(global, &profiles),
        ProfileCommand::Add { name } => {
            if global.hub_connection_string.is_some() || global.storage_connection_string.is_some() {
                return Err(Failure::usage("a profile has no secrets: pass connection strings in the environment"));
            }
            let mut options = global.given.iter().filter(|word| word.starts_with("--"));
            if let Some(option) =
                options.find(|option| *option != "--profile" && !ConnectionSettings::has_option(option))
            {
                return Err(Failure::usage(format!("a profile does not keep {option}: pass it to each command")));
            }
            profiles.profiles.insert(name, global.settings.clone());
        }
        ProfileCommand::Use { name } => {
            profiles.select(Some(&name))?;
            profiles.default = Some(name);
        }
        ProfileCommand::Remove { name } => {
            profiles.select(Some(&name))?;
            profiles.profiles.remove(&name);
            profiles.default = profiles.default.filter(|default| *default != name);
        }
    }
    profiles.write()?;
    Ok(Exit::Done)
}

fn show_profiles(global: &Global, profiles: &Profiles) -> Result<Exit> {
    let rows: Vec<_> = profiles
        .profiles
        .iter()
        .map(|(name, profile)| ProfileRow { is_default: profiles.default.as_ref() == Some(name), name, profile })
        .collect();
    let mut table = Table::new(COLUMNS);
    for ProfileRow { name, is_default, profile } in &rows {
        table.add_row([
            if *is_default { "*" } else { "" }.to_owned(),
            (*name).to_owned(),
            or_empty(profile.namespace.as_deref()),
            or_empty(profile.event_hub.as_deref()),
            or_empty(profile.consumer_group.as_deref()),
            or_empty(profile.account.as_deref()),
            or_empty(profile.container.as_deref()),
            or_empty(profile.read_group.as_deref()),
            or_empty(profile.foreign_lease_duration.map(humantime::format_duration)),
        ]);
    }
    Output::new(global).show_document(
        &ProfilesDocument { schema: "ehcp.profiles/1", profiles: &rows },
        &rows,
        &table,
    )?;
    Ok(Exit::Done)
}
