//! Starts this program again, as an event hub or for a measurement.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::cost::Cost;
use crate::work::Work;
use crate::{Failure, Result, cores};

/// The address of an event hub.
#[derive(Clone, Debug, Default)]
pub(crate) struct Address {
    pub(crate) endpoint: String,
    pub(crate) connection_string: String,
}

impl Address {
    /// Reads addresses from arguments, two for each.
    pub(crate) fn read_all(arguments: &[&str]) -> Vec<Self> {
        let (addresses, _) = arguments.as_chunks();
        let address = |[endpoint, connection_string]: &[&str; 2]| Self {
            endpoint: (*endpoint).to_owned(),
            connection_string: (*connection_string).to_owned(),
        };
        addresses.iter().map(address).collect()
    }
}

/// An event hub in a separate process, which ends when this is dropped.
pub(crate) struct Hub {
    process: Child,
    pub(crate) address: Address,
}

impl Hub {
    pub(crate) fn start(events: u32) -> Result<Self> {
        let (core, events) = (cores::first_and_last()?.1.to_string(), events.to_string());
        let process = this_program()?.args(["hub", &core, &events]).stdout(Stdio::piped()).spawn()?;
        let mut hub = Self { process, address: Address::default() };
        let output = hub.process.stdout.take().ok_or("the hub has no output")?;
        let mut lines = BufReader::new(output).lines();
        let mut line = || lines.next().ok_or("the hub did not start")?.map_err(Failure::from);
        hub.address = Address { endpoint: line()?, connection_string: line()? };
        Ok(hub)
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs one measurement.
pub(crate) fn measure(work: Work, events: u32, hubs: &[&Address]) -> Result<Cost> {
    let core = cores::first_and_last()?.0.to_string();
    let mut command = this_program()?;
    command.args(["measure", &core, &work.to_string(), &events.to_string()]).stderr(Stdio::inherit());
    for Address { endpoint, connection_string } in hubs {
        command.args([endpoint, connection_string]);
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err(format!("measuring {work} failed").into());
    }
    String::from_utf8(output.stdout)?.parse()
}

/// Returns a command without backtraces: errors of the official client capture one.
fn this_program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env_remove("RUST_BACKTRACE").env_remove("RUST_LIB_BACKTRACE");
    Ok(command)
}
