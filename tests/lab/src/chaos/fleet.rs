//! The instances: starts them, lets them suffer, and notes what became of each life.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::chaos::Failure;
use crate::chaos::child::Child;
use crate::chaos::clock::{Clock, Moment};
use crate::chaos::hub;
use crate::chaos::life;
use crate::chaos::life::Life;
use crate::chaos::link::Link;
use crate::chaos::proxy::{Proxy, Road};
use crate::chaos::reading::Reading;
use crate::chaos::samples::{Sample, sample};

/// How a life ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Killed,
    /// It ended when asked, with status 0.
    Orderly,
    /// It ended when asked, but not so; or did not.
    Disorderly(String),
    /// Nobody had asked.
    Unasked(String),
}

/// What is known of a life from outside.
#[derive(Clone, Debug)]
pub struct Biography {
    pub life: Life,
    pub from: Moment,
    pub end: Option<(Moment, End)>,
    pub samples: Vec<Sample>,
}

/// What every instance and every operator needs to know.
#[derive(Clone, Debug)]
pub struct Orders {
    pub folder: PathBuf,
    pub container: String,
    pub hub: Arc<hub::Hello>,
    pub expiry: Duration,
    pub interval: Duration,
    pub reading: Reading,
    pub clock: Clock,
}

pub struct Fleet {
    orders: Orders,
    road: Arc<Road>,
    seats: Vec<Mutex<Seat>>,
}

/// One instance.
struct Seat {
    link: Link,
    running: Option<Running>,
    lives: Vec<Biography>,
}

struct Running {
    child: Child,
    _proxy: Proxy,
}

impl Fleet {
    pub fn new(orders: Orders, road: Arc<Road>, links: Vec<Link>) -> Self {
        let seat = |link| Mutex::new(Seat { link, running: None, lives: Vec::new() });
        Self { orders, road, seats: links.into_iter().map(seat).collect() }
    }

    pub fn size(&self) -> u32 {
        u32::try_from(self.seats.len()).unwrap_or(u32::MAX)
    }

    pub async fn start(&self, instance: u32) -> Result<Life, Failure> {
        let mut seat = self.seat(instance).await?;
        let number = u32::try_from(seat.lives.len())? + 1;
        let life = Life { instance, number };
        let proxy = Proxy::open(self.road.clone(), life).await?;
        let args = self.args(life, &proxy, &seat.link);
        let child = Child::spawn(&life.to_string(), args, &self.orders.folder)?;
        seat.running = Some(Running { child, _proxy: proxy });
        seat.lives.push(Biography { life, from: self.orders.clock.now(), end: None, samples: Vec::new() });
        Ok(life)
    }

    fn args(&self, life: Life, proxy: &Proxy, link: &Link) -> Vec<OsString> {
        let Orders { folder, container, hub, expiry, interval, reading, clock } = &self.orders;
        let mut args = vec!["worker".into(), format!("--owner={}", life.owner()).into()];
        args.push(format!("--began={}", clock.began()).into());
        args.extend(["--diary".into(), folder.join(format!("{life}.diary")).into()]);
        args.extend([
            format!("--storage={}", proxy.connection_string()).into(),
            format!("--container={container}").into(),
        ]);
        args.push(format!("--hub={}", hub.connection_string).into());
        args.push(format!("--hub-endpoint={}", link.endpoint()).into());
        args.push(format!("--expiry={}", expiry.as_secs_f64()).into());
        args.push(format!("--interval={}", interval.as_secs_f64()).into());
        args.extend(reading.args().map(OsString::from));
        args
    }

    pub async fn kill(&self, instance: u32) -> Result<(), Failure> {
        let mut seat = self.seat(instance).await?;
        let Some(mut running) = seat.running.take() else { return Ok(()) };
        if let Some(status) = running.child.ended()? {
            seat.close(self.orders.clock.now(), End::Unasked(status.to_string()));
            return Ok(());
        }
        running.child.kill().await?;
        seat.close(self.orders.clock.now(), End::Killed);
        Ok(())
    }

    /// Asks it to end, and waits for that. What does not end in time is killed.
    pub async fn end(&self, instance: u32, limit: Duration) -> Result<(), Failure> {
        let mut seat = self.seat(instance).await?;
        let Some(mut running) = seat.running.take() else { return Ok(()) };
        if let Some(status) = running.child.ended()? {
            seat.close(self.orders.clock.now(), End::Unasked(status.to_string()));
            return Ok(());
        }
        // One that is gone by now has ended in its own way, which is told below.
        let _ = running.child.send(Signal::TERM);
        let asked = Instant::now();
        let end = match running.child.end_within(limit).await? {
            Some(status) if status.success() => End::Orderly,
            Some(status) => End::Disorderly(format!("{status} after {:.1?}", asked.elapsed())),
            None => End::Disorderly(format!("had not ended after {limit:?}")),
        };
        running.child.kill().await?;
        seat.close(self.orders.clock.now(), end);
        Ok(())
    }

    pub async fn start_if_missing(&self, instance: u32) -> Result<(), Failure> {
        let missing = self.seat(instance).await?.running.is_none();
        if missing {
            self.start(instance).await?;
        }
        Ok(())
    }

    /// Stops it in its tracks, or lets it go on. One that is gone is noted at the next look.
    pub async fn send(&self, instance: u32, signal: Signal) {
        if let Ok(seat) = self.seat(instance).await
            && let Some(running) = &seat.running
        {
            let _ = running.child.send(signal);
        }
    }

    /// By so many seconds its wall clock is wrong from now on.
    pub async fn set_clock(&self, instance: u32, offset: i64) {
        if let Ok(mut seat) = self.seat(instance).await
            && let Some(running) = &mut seat.running
        {
            let _ = running.child.order(&format!("clock {offset}")).await;
        }
    }

    /// Notes who is gone, and starts it again; and samples those that are there. Tells who was gone.
    pub async fn look(&self) -> Result<Vec<(Life, String)>, Failure> {
        let mut gone = Vec::new();
        for instance in 0..self.size() {
            if let Some(ended) = self.look_at(instance)? {
                gone.push(ended);
                self.start(instance).await?;
            }
        }
        Ok(gone)
    }

    fn look_at(&self, instance: u32) -> Result<Option<(Life, String)>, Failure> {
        // Somebody is at it: next time.
        let Ok(mut seat) = self.seats[instance as usize].try_lock() else { return Ok(None) };
        let now = self.orders.clock.now();
        let Some(running) = &mut seat.running else { return Ok(None) };
        let (ended, sample) = (running.child.ended()?, running.child.id().and_then(|id| sample(now, id)));
        let Some(status) = ended else {
            if let Some(biography) = seat.lives.last_mut() {
                biography.samples.extend(sample);
            }
            return Ok(None);
        };
        seat.running = None;
        seat.close(now, End::Unasked(status.to_string()));
        Ok(seat.lives.last().map(|biography| (biography.life, status.to_string())))
    }

    /// All lives there were.
    pub async fn biographies(&self) -> Vec<Biography> {
        let mut all = Vec::new();
        for seat in &self.seats {
            all.extend(seat.lock().await.lives.iter().cloned());
        }
        all
    }

    async fn seat(&self, instance: u32) -> Result<MutexGuard<'_, Seat>, Failure> {
        let seat = self.seats.get(instance as usize);
        Ok(seat.ok_or_else(|| format!("there is no {}", life::owner(instance)))?.lock().await)
    }
}

impl Seat {
    fn close(&mut self, at: Moment, end: End) {
        if let Some(biography) = self.lives.last_mut() {
            biography.end = Some((at, end));
        }
    }
}
