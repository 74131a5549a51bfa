//! The instances: starts them, injects their faults, and records the end of each incarnation.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::chaos::Failure;
use crate::chaos::child::Child;
use crate::chaos::clock::{Clock, Moment};
use crate::chaos::hub;
use crate::chaos::incarnation;
use crate::chaos::incarnation::IncarnationId;
use crate::chaos::link::Link;
use crate::chaos::proxy::{Proxy, ProxyShared};
use crate::chaos::reading::Reading;
use crate::chaos::samples::{Sample, sample};

/// How an incarnation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Killed,
    /// It ended after a shutdown request, with status 0.
    Clean,
    /// The signal of a shutdown request ended it before it handled signals.
    NotReady,
    /// It ended after a shutdown request with another status, or did not end.
    Unclean(String),
    /// It ended without a shutdown request.
    Unexpected(String),
}

/// Returns how an incarnation ended after it got SIGTERM. `ready`: it had reported that it handles signals.
fn end_after_request(status: ExitStatus, ready: bool, took: Duration) -> End {
    if status.success() {
        return End::Clean;
    }
    if !ready && status.signal() == Some(Signal::TERM.as_raw()) {
        return End::NotReady;
    }
    End::Unclean(format!("{status} after {took:.1?}"))
}

/// What is known of an incarnation from outside.
#[derive(Clone, Debug)]
pub struct ObservedIncarnation {
    pub incarnation: IncarnationId,
    pub from: Moment,
    pub end: Option<(Moment, End)>,
    pub samples: Vec<Sample>,
}

/// Settings of every instance and every operator.
#[derive(Clone, Debug)]
pub struct Orders {
    pub folder: PathBuf,
    pub container: String,
    pub hub: Arc<hub::Hello>,
    pub lease_duration: Duration,
    pub interval: Duration,
    pub reading: Reading,
    pub clock: Clock,
}

impl Orders {
    /// Returns the event log of an incarnation, which exists as soon as it handles signals.
    pub fn event_log(&self, incarnation: IncarnationId) -> PathBuf {
        self.folder.join(format!("{incarnation}.events"))
    }
}

pub struct Fleet {
    pub orders: Orders,
    shared: Arc<ProxyShared>,
    slots: Vec<Mutex<Slot>>,
}

/// One instance.
struct Slot {
    link: Link,
    running: Option<Running>,
    incarnations: Vec<ObservedIncarnation>,
}

struct Running {
    child: Child,
    _proxy: Proxy,
}

impl Fleet {
    pub fn new(orders: Orders, shared: Arc<ProxyShared>, links: Vec<Link>) -> Self {
        let slot = |link| Mutex::new(Slot { link, running: None, incarnations: Vec::new() });
        Self { orders, shared, slots: links.into_iter().map(slot).collect() }
    }

    pub fn size(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    pub async fn start(&self, instance: u32) -> Result<IncarnationId, Failure> {
        let mut slot = self.slot(instance).await?;
        let number = u32::try_from(slot.incarnations.len())? + 1;
        let incarnation = IncarnationId { instance, number };
        let proxy = Proxy::open(self.shared.clone(), incarnation).await?;
        let args = self.args(incarnation, &proxy, &slot.link);
        let child = Child::spawn(&incarnation.to_string(), args, &self.orders.folder)?;
        slot.running = Some(Running { child, _proxy: proxy });
        slot.incarnations.push(ObservedIncarnation {
            incarnation,
            from: self.orders.clock.now(),
            end: None,
            samples: Vec::new(),
        });
        Ok(incarnation)
    }

    fn args(&self, incarnation: IncarnationId, proxy: &Proxy, link: &Link) -> Vec<OsString> {
        let Orders { container, hub, lease_duration, interval, reading, clock, .. } = &self.orders;
        let mut args = vec!["worker".into(), format!("--owner={}", incarnation.owner()).into()];
        args.push(format!("--began={}", clock.began()).into());
        args.extend(["--event-log".into(), self.orders.event_log(incarnation).into()]);
        args.extend([
            format!("--storage={}", proxy.connection_string()).into(),
            format!("--container={container}").into(),
        ]);
        args.push(format!("--hub={}", hub.connection_string).into());
        args.push(format!("--hub-endpoint={}", link.endpoint()).into());
        args.push(format!("--lease-duration={}", lease_duration.as_secs_f64()).into());
        args.push(format!("--interval={}", interval.as_secs_f64()).into());
        args.extend(reading.args().map(OsString::from));
        args
    }

    pub async fn kill(&self, instance: u32) -> Result<(), Failure> {
        let mut slot = self.slot(instance).await?;
        let Some(mut running) = slot.running.take() else { return Ok(()) };
        if let Some(status) = running.child.ended()? {
            slot.close(self.orders.clock.now(), End::Unexpected(status.to_string()));
            return Ok(());
        }
        running.child.kill().await?;
        slot.close(self.orders.clock.now(), End::Killed);
        Ok(())
    }

    /// Shuts the instance down and waits for its end. It is killed if it does not end in time.
    pub async fn end(&self, instance: u32, limit: Duration) -> Result<(), Failure> {
        let mut slot = self.slot(instance).await?;
        let Some(mut running) = slot.running.take() else { return Ok(()) };
        if let Some(status) = running.child.ended()? {
            slot.close(self.orders.clock.now(), End::Unexpected(status.to_string()));
            return Ok(());
        }
        // A process that is gone by now has ended in its own way, which is reported below.
        let _ = running.child.send(Signal::TERM);
        let requested = Instant::now();
        let end = match running.child.end_within(limit).await? {
            Some(status) => end_after_request(status, self.is_ready(&slot), requested.elapsed()),
            None => End::Unclean(format!("had not ended after {limit:?}")),
        };
        running.child.kill().await?;
        slot.close(self.orders.clock.now(), end);
        Ok(())
    }

    pub async fn start_if_missing(&self, instance: u32) -> Result<(), Failure> {
        let missing = self.slot(instance).await?.running.is_none();
        if missing {
            self.start(instance).await?;
        }
        Ok(())
    }

    /// Stops or continues the process. A process that is gone is recorded at the next check.
    pub async fn send(&self, instance: u32, signal: Signal) {
        if let Ok(slot) = self.slot(instance).await
            && let Some(running) = &slot.running
        {
            let _ = running.child.send(signal);
        }
    }

    /// From now on its wall clock is wrong by this many seconds.
    pub async fn set_clock(&self, instance: u32, offset: i64) {
        if let Ok(mut slot) = self.slot(instance).await
            && let Some(running) = &mut slot.running
        {
            let _ = running.child.order(&format!("clock {offset}")).await;
        }
    }

    /// Records the processes that are gone and restarts them, and samples the others. Returns those that were gone.
    pub async fn observe(&self) -> Result<Vec<(IncarnationId, String)>, Failure> {
        let mut gone = Vec::new();
        for instance in 0..self.size() {
            if let Some(ended) = self.look_at(instance)? {
                gone.push(ended);
                self.start(instance).await?;
            }
        }
        Ok(gone)
    }

    fn look_at(&self, instance: u32) -> Result<Option<(IncarnationId, String)>, Failure> {
        // Another task is using it: next time.
        let Ok(mut slot) = self.slots[instance as usize].try_lock() else { return Ok(None) };
        let now = self.orders.clock.now();
        let Some(running) = &mut slot.running else { return Ok(None) };
        let (ended, sample) = (running.child.ended()?, running.child.id().and_then(|id| sample(now, id)));
        let Some(status) = ended else {
            if let Some(observed) = slot.incarnations.last_mut() {
                observed.samples.extend(sample);
            }
            return Ok(None);
        };
        slot.running = None;
        slot.close(now, End::Unexpected(status.to_string()));
        Ok(slot.incarnations.last().map(|observed| (observed.incarnation, status.to_string())))
    }

    /// Returns whether the last incarnation of an instance handles signals.
    fn is_ready(&self, slot: &Slot) -> bool {
        slot.incarnations.last().is_some_and(|observed| self.orders.event_log(observed.incarnation).exists())
    }

    /// Returns all incarnations until now.
    pub async fn observed_incarnations(&self) -> Vec<ObservedIncarnation> {
        let mut all = Vec::new();
        for slot in &self.slots {
            all.extend(slot.lock().await.incarnations.iter().cloned());
        }
        all
    }

    async fn slot(&self, instance: u32) -> Result<MutexGuard<'_, Slot>, Failure> {
        let slot = self.slots.get(instance as usize);
        Ok(slot.ok_or_else(|| format!("there is no {}", incarnation::owner(instance)))?.lock().await)
    }
}

impl Slot {
    fn close(&mut self, at: Moment, end: End) {
        if let Some(observed) = self.incarnations.last_mut() {
            observed.end = Some((at, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_requested_signal_may_end_an_early_process() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let (term, kill) = (ExitStatus::from_raw(15), ExitStatus::from_raw(9));
        let unclean = |text: &str| End::Unclean(format!("{text} after 300.0ms"));
        for (status, ready, expected) in [
            (exited(0), true, End::Clean),
            (exited(0), false, End::Clean),
            (term, false, End::NotReady),
            (term, true, unclean("signal: 15 (SIGTERM)")),
            (kill, false, unclean("signal: 9 (SIGKILL)")),
            (exited(101), false, unclean("exit status: 101")),
            (exited(143), false, unclean("exit status: 143")),
        ] {
            let end = end_after_request(status, ready, Duration::from_millis(300));
            assert_eq!(end, expected, "{status}, ready {ready}");
        }
    }
}
