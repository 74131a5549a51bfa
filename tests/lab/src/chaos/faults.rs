//! Executes a plan.

use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use eventhubs_checkpoint::internal::lock::lock;
use rustix::process::Signal;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::sleep;

use crate::chaos::Failure;
use crate::chaos::child::Child;
use crate::chaos::clock::{Clock, Moment};
use crate::chaos::fleet::Fleet;
use crate::chaos::network_faults::{Condition, NetworkFaults};
use crate::chaos::operators::Operators;
use crate::chaos::plan::{Fault, Incident, Place};
use crate::chaos::proxy::ProxyShared;
use crate::chaos::watcher::Seen;
use crate::support::azurite::Azurite;

const CPU_LOADS_PER_CORE: usize = 2;

/// An incident as it happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Happened {
    pub fault: Fault,
    pub instance: Option<u32>,
    pub from: Moment,
    pub to: Moment,
}

/// Everything that faults affect.
pub struct Stage {
    pub clock: Clock,
    pub fleet: Arc<Fleet>,
    pub shared: Arc<ProxyShared>,
    pub hub_faults: Arc<NetworkFaults>,
    azurite: Mutex<Option<Azurite>>,
    /// Held from the end of a blob service to the start of the next one, because that may take long on a busy machine.
    restarting: Arc<Mutex<()>>,
    pub folder: PathBuf,
    pub lease_duration: Duration,
    /// How long an instance may take to shut down.
    pub ends_within: Duration,
    happened: std::sync::Mutex<Vec<Happened>>,
    pub operators: Operators,
    /// The observations of the watcher.
    pub seen: watch::Sender<Seen>,
    turns: Turns,
}

/// At any time there is at most one incident in each place.
#[derive(Default)]
struct Turns {
    instances: Vec<Mutex<()>>,
    storage: Mutex<()>,
    hub: Mutex<()>,
    machine: Mutex<()>,
    checkpoints: Mutex<()>,
}

impl Turns {
    fn of(&self, incident: &Incident) -> &Mutex<()> {
        let instance = || self.instances.get(incident.instance? as usize);
        match incident.fault.place() {
            Place::Instance => instance().unwrap_or(&self.machine),
            Place::Storage => &self.storage,
            Place::Hub => &self.hub,
            Place::Machine => &self.machine,
            Place::Checkpoints => &self.checkpoints,
        }
    }
}

impl Stage {
    pub fn new(
        clock: Clock,
        (fleet, ends_within): (Arc<Fleet>, Duration),
        (shared, hub_faults): (Arc<ProxyShared>, Arc<NetworkFaults>),
        azurite: Azurite,
        (folder, lease_duration): (PathBuf, Duration),
        operators: Operators,
    ) -> Self {
        let (azurite, happened) = (Mutex::new(Some(azurite)), std::sync::Mutex::default());
        let restarting = Arc::default();
        let instances = (0..fleet.size()).map(|_| Mutex::default()).collect();
        let turns = Turns { instances, ..Turns::default() };
        Self {
            clock,
            fleet,
            shared,
            hub_faults,
            azurite,
            restarting,
            folder,
            lease_duration,
            ends_within,
            happened,
            operators,
            seen: watch::Sender::default(),
            turns,
        }
    }

    /// Runs an incident from its beginning to its end.
    pub async fn strike(&self, incident: &Incident) -> Result<Happened, Failure> {
        let Incident { fault, instance, .. } = *incident;
        // An incident that takes longer than planned, as on a busy machine, delays the next one in its place.
        let _turn = self.turns.of(incident).lock().await;
        let happens = Happened { fault, instance, from: self.clock.now(), to: Moment::MAX };
        self.happenings().push(happens.clone());
        match instance {
            Some(instance) => self.strike_one(incident, instance).await?,
            None => self.strike_all(incident).await?,
        }
        let happened = Happened { to: self.clock.now(), ..happens.clone() };
        self.happenings().iter_mut().filter(|other| **other == happens).for_each(|other| *other = happened.clone());
        Ok(happened)
    }

    /// Returns the address of the storage; `None` while it is restarted.
    pub async fn storage(&self) -> Option<String> {
        self.azurite.lock().await.as_ref().map(|azurite| azurite.endpoint().to_owned())
    }

    pub fn happened(&self) -> Vec<Happened> {
        self.happenings().clone()
    }

    fn happenings(&self) -> MutexGuard<'_, Vec<Happened>> {
        lock(&self.happened)
    }

    /// Repairs what an aborted fault has left.
    pub async fn restore(&self) -> Result<(), Failure> {
        self.shared.network_faults.clear();
        self.hub_faults.clear();
        let restarting = self.restarting.lock().await;
        if self.storage().await.is_none() {
            self.start_storage().await?;
        }
        drop(restarting);
        for instance in 0..self.fleet.size() {
            self.fleet.send(instance, Signal::CONT).await;
            self.fleet.set_clock(instance, 0).await;
            self.fleet.start_if_missing(instance).await?;
        }
        let now = self.clock.now();
        self.happenings().iter_mut().for_each(|happened| happened.to = happened.to.min(now));
        Ok(())
    }

    async fn start_storage(&self) -> Result<(), Failure> {
        let started = start_storage(&self.folder).await?;
        self.shared.lead_to(started.endpoint());
        *self.azurite.lock().await = Some(started);
        Ok(())
    }

    async fn strike_one(&self, incident: &Incident, instance: u32) -> Result<(), Failure> {
        let lasts = incident.lasts;
        match incident.fault {
            Fault::Kill => {
                self.fleet.kill(instance).await?;
                sleep(lasts).await;
                self.fleet.start(instance).await?;
            }
            Fault::Restart => {
                self.fleet.end(instance, self.ends_within).await?;
                sleep(lasts).await;
                self.fleet.start(instance).await?;
            }
            Fault::Freeze => {
                self.fleet.send(instance, Signal::STOP).await;
                sleep(lasts).await;
                self.fleet.send(instance, Signal::CONT).await;
            }
            Fault::Clock => {
                self.fleet.set_clock(instance, incident.skew).await;
                sleep(lasts).await;
                self.fleet.set_clock(instance, 0).await;
            }
            _ => self.change_network_faults(incident).await,
        }
        Ok(())
    }

    async fn strike_all(&self, incident: &Incident) -> Result<(), Failure> {
        match incident.fault {
            Fault::StorageRestart => self.restart_storage(incident.lasts).await,
            Fault::Cpu => self.cpu_load(incident.lasts).await,
            Fault::Reset => self.reset(incident).await,
            _ => {
                self.change_network_faults(incident).await;
                Ok(())
            }
        }
    }

    async fn change_network_faults(&self, incident: &Incident) {
        let Some(condition) = condition(incident.fault, self.lease_duration) else { return };
        let network_faults = match incident.fault {
            Fault::HubCut | Fault::HubStall => &*self.hub_faults,
            _ => &self.shared.network_faults,
        };
        let token = network_faults.begin(incident.instance, condition);
        sleep(incident.lasts).await;
        network_faults.end(&token);
    }

    /// Restarts the storage gracefully, because the emulator, unlike the service, loses acknowledged writes when it is
    /// killed. Takes as long as needed; the incident lasts at least this long, and the rest of that time is without
    /// faults.
    async fn restart_storage(&self, lasts: Duration) -> Result<(), Failure> {
        let over = self.clock.now() + lasts;
        let restarting = self.stop_storage().await?;
        self.start_storage().await?;
        drop(restarting);
        sleep(over.saturating_sub(self.clock.now())).await;
        Ok(())
    }

    /// Waits until the storage has written its data. No other task starts a blob service before the guard is dropped.
    pub async fn stop_storage(&self) -> Result<OwnedMutexGuard<()>, Failure> {
        let restarting = self.restarting.clone().lock_owned().await;
        let running = self.azurite.lock().await.take();
        let stop = || {
            drop(running);
            restarting
        };
        Ok(tokio::task::spawn_blocking(stop).await?)
    }

    async fn reset(&self, incident: &Incident) -> Result<(), Failure> {
        let over = self.clock.now() + incident.lasts;
        for reset in &incident.resets {
            sleep(reset.after).await;
            let checkpoints = self.seen.borrow().last.positions.clone();
            self.operators.run(reset, &checkpoints).await?;
        }
        sleep(over.saturating_sub(self.clock.now())).await;
        Ok(())
    }

    async fn cpu_load(&self, lasts: Duration) -> Result<(), Failure> {
        let cores = std::thread::available_parallelism()?.get();
        let processes: Result<Vec<_>, _> = (0..CPU_LOADS_PER_CORE * cores)
            .map(|_| Child::spawn("cpu-load", ["cpu-load".into()], &self.folder))
            .collect();
        let processes = processes?;
        sleep(lasts).await;
        for mut cpu_load in processes {
            cpu_load.kill().await?;
        }
        Ok(())
    }
}

/// Starts an emulator that keeps its data in this folder.
pub async fn start_storage(folder: &std::path::Path) -> Result<Azurite, Failure> {
    let location = folder.join("azurite");
    let location = location.to_str().ok_or("the path of the storage folder is not valid Unicode")?;
    Ok(Azurite::start_with(&["--location", location]).await?)
}

fn condition(fault: Fault, lease_duration: Duration) -> Option<Condition> {
    match fault {
        Fault::Isolate | Fault::Outage | Fault::HubCut => Some(Condition::Cut),
        Fault::Hang | Fault::HubStall => Some(Condition::Hang),
        Fault::LostResponses => Some(Condition::LostResponses(1.0 / 3.0)),
        // Requests have a quarter of the lease duration.
        Fault::Delay => Some(Condition::Delay(0.5, lease_duration.mul_f64(0.35))),
        Fault::Throttle => Some(Condition::Throttle(0.5)),
        Fault::Kill
        | Fault::Restart
        | Fault::Freeze
        | Fault::StorageRestart
        | Fault::Cpu
        | Fault::Clock
        | Fault::Reset => None,
    }
}
