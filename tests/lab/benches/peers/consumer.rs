//! A running consumer, as seen from outside.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout_at};

use crate::Result;
use crate::clients::Client;
use crate::settings::{Line, PARTITIONS, Settings};

/// Linux reports CPU time in these units on all architectures.
const MILLIS_PER_TICK: u64 = 10;

/// A process that is killed when this is dropped.
pub(crate) struct Consumer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    started: Instant,
    pub(crate) versions: String,
    /// When the first event of each partition arrived, since the start.
    first: Vec<Duration>,
    /// Ends the SDKs when it is closed.
    _input: Option<ChildStdin>,
}

/// What a consumer has used since its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) resident_kib: u32,
}

impl Consumer {
    pub(crate) fn start(client: Client, settings: &Settings) -> Result<Self> {
        let mut command = Command::from(client.command()?);
        command.arg(serde_json::to_string(settings)?);
        let started = Instant::now();
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let output = process.stdout.take().ok_or("a consumer without output")?;
        let (lines, input) = (BufReader::new(output).lines(), process.stdin.take());
        Ok(Self { process, lines, started, versions: String::new(), first: Vec::new(), _input: input })
    }

    /// Waits until the first event of this many partitions has arrived. Returns when that was.
    pub(crate) async fn first_events(&mut self, partitions: usize, limit: Duration) -> Result<Duration> {
        while self.first.len() < partitions {
            self.next(limit).await?;
        }
        Ok(self.first[partitions - 1])
    }

    /// Waits until the first event of every partition has arrived.
    pub(crate) async fn covers_all(&mut self, limit: Duration) -> Result<Duration> {
        self.first_events(PARTITIONS.into(), limit).await
    }

    /// Waits until the expected number of events was processed.
    pub(crate) async fn processes_all(&mut self, limit: Duration) -> Result<()> {
        while !matches!(self.next(limit).await?, Line::Processed(_)) {}
        Ok(())
    }

    async fn next(&mut self, limit: Duration) -> Result<Line> {
        let line = timeout_at(self.started + limit, self.lines.next_line()).await;
        let line = line.map_err(|_| "a consumer did not get far enough in time")??.ok_or("a consumer ended")?;
        let line: Line = serde_json::from_str(&line)?;
        match &line {
            Line::Versions(versions) => self.versions.clone_from(versions),
            Line::First(_) => self.first.push(self.started.elapsed()),
            Line::Processed(_) | Line::Lost(_) => {}
        }
        Ok(line)
    }

    pub(crate) fn used(&self) -> Result<Used> {
        let id = self.process.id().ok_or("a consumer ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no memory")?;
        let resident_kib = resident.split_whitespace().next().ok_or("no memory")?.parse()?;
        Ok(Used { cpu: cpu_of(&std::fs::read_to_string(format!("/proc/{id}/stat"))?)?, resident_kib })
    }

    pub(crate) async fn kill(mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Kills the process, and returns the partitions that it has lost since the last line that was read.
    pub(crate) async fn lost(mut self) -> Result<Vec<String>> {
        self.process.kill().await?;
        let mut lost = Vec::new();
        while let Some(line) = self.lines.next_line().await? {
            if let Line::Lost(partition) = serde_json::from_str(&line)? {
                lost.push(partition);
            }
        }
        Ok(lost)
    }
}

/// Reads the CPU time of all threads from the `stat` of a process.
fn cpu_of(stat: &str) -> Result<Duration> {
    // The name of the program may contain anything, so the fields count from its end.
    let (_, fields) = stat.rsplit_once(')').ok_or("no fields")?;
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).map(|field| field.parse().unwrap_or(0_u64)).sum();
    Ok(Duration::from_millis(ticks * MILLIS_PER_TICK))
}
