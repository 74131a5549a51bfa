//! The worker processes of an example, which it freezes, wakes and kills, and the partitions that they own.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use eventhubs_checkpoint::GroupStore;
use rustix::process::{Pid, Signal, kill_process};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// A worker process, which is killed when this value is dropped.
pub(crate) struct WorkerProcess(Child);

impl WorkerProcess {
    /// Starts a process that writes its log into this file.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let log = File::create(log)?;
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = i32::try_from(self.0.id())?;
        Ok(kill_process(Pid::from_raw(id).ok_or("the worker has no process id")?, signal)?)
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub(crate) fn end(mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns how many partitions each owner owns. Released partitions have the owner "".
pub(crate) async fn count_owned(store: &GroupStore) -> Result<BTreeMap<String, usize>> {
    let mut owned = BTreeMap::<_, usize>::new();
    for record in store.list_ownerships().await?.records {
        *owned.entry(record.record.owner.map(|owner| owner.to_string()).unwrap_or_default()).or_default() += 1;
    }
    Ok(owned)
}
