//! The commands.

mod check;
mod cost;
mod delete;
mod describe;
mod doctor;
mod events;
mod export;
mod kafka;
mod keda;
mod lag;
mod list;
mod migrate;
mod pause;
mod peek;
pub mod positions;
mod profile;
mod redrive;
mod release;
mod reset;
mod setting;
mod watch;

use clap::CommandFactory;

use crate::args::{Args, Command};
use crate::exit::{Exit, Failure, Result};
use crate::output::print_text;
use crate::serve;

/// Runs a command, and returns its exit code.
pub async fn run(args: Args) -> Result<u8> {
    let global = args.global;
    global.check_secrets()?;
    let exit = match args.command {
        Command::Check(check) => return check::run(&global, &check).await,
        Command::List(list) => list::run(&global, &list).await?,
        Command::Describe(describe) => describe::run(&global, &describe).await?,
        Command::Lag(lag) => lag::run(&global, &lag).await?,
        Command::Watch(watch) => watch::run(&global, &watch).await?,
        Command::Reset(reset) => reset::run_reset(&global, reset).await?,
        Command::Init(init) => reset::run_init(&global, init).await?,
        Command::Delete(delete) => delete::run(&global, &delete).await?,
        Command::Release(release) => release::run(&global, &release).await?,
        Command::Pause(pause) => pause::run_pause(&global, &pause).await?,
        Command::Resume(resume) => pause::run_resume(&global, &resume).await?,
        Command::Export(export) => export::run(&global, &export).await?,
        Command::Import(import) => reset::run_import(&global, import).await?,
        Command::Copy(copy) => reset::run_copy(&global, copy).await?,
        Command::Migrate(migrate) => migrate::run(&global, &migrate).await?,
        Command::Peek(peek) => peek::run(&global, &peek).await?,
        Command::Redrive(redrive) => redrive::run(&global, &redrive).await?,
        Command::Doctor(doctor) => doctor::run(&global, &doctor).await?,
        Command::Cost(cost) => cost::run(&global, &cost).await?,
        Command::Keda(keda) => keda::run(&global, &keda).await?,
        Command::Serve(serve) => serve::run(&global, &serve).await?,
        Command::Profile(profile) => profile::run(&global, profile)?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "ehcp", &mut script);
            print_text(&String::from_utf8_lossy(&script))?;
            Exit::Done
        }
        Command::Man { to } => {
            std::fs::create_dir_all(&to)?;
            clap_mangen::generate_to(Args::command(), &to)
                .map_err(|error| Failure::failed(format!("cannot write to {}: {error}", to.display())))?;
            Exit::Done
        }
    };
    Ok(exit.code())
}
