//! The beacon of the group, as this instance reads and lights it.
//!
//! A listing costs as much as twelve reads. So an instance reads the beacon every few seconds, and lists when it shows
//! a change. While the beacon is trusted, listings are rare otherwise. No decision about a partition rests on it.

use std::time::Duration;

use super::context::Context;
use super::events::Note;
use super::step::StorageRequest;
use crate::backoff::Backoff;
use crate::error::Result;
use crate::model::Moment;
use crate::store::beacon::{Beacon, Lit};

/// An instance lights the beacon at most this often.
const BETWEEN_LIGHTS: Duration = Duration::from_secs(1);

/// After this many failed reads in a row the beacon is not trusted, nor after a lease duration without a read.
const MOST_MISSED: u32 = 3;

/// A beacon that is older than this many lease durations is not trusted: some instance would have refreshed it.
const OLDEST: u32 = 2;

/// What this instance knows about the beacon.
#[derive(Debug, Default)]
pub(super) struct BeaconKeeper {
    /// The beacon as it was last read or written.
    known: Option<Beacon>,
    /// The last change that a listing of this instance covers.
    covered: Option<i64>,
    /// The change that the listing under way will cover; `None` while there is none.
    covered_next: Option<i64>,
    /// When to read it next; `None` while a read is under way.
    next_read_at: Option<Moment>,
    /// When the last read was sent that showed the beacon.
    read_at: Option<Moment>,
    /// When the read that is under way was sent.
    sent: Moment,
    /// Since the last light, something has changed that other instances should look at.
    has_news: bool,
    lighting: bool,
    next_light_at: Moment,
    /// Since when an instance that ends has waited only for it.
    awaited_since: Option<Moment>,
    /// How many reads have failed in a row.
    failed_reads: u32,
    /// How many lights have failed in a row.
    failed_lights: u32,
    /// How many reads in a row have shown no number.
    numberless_reads: u32,
}

impl BeaconKeeper {
    /// Reads it for the first time at once.
    pub(super) fn begin(&mut self, context: &Context) {
        self.next_read_at = Some(context.now);
    }

    /// Returns until when rare listings are enough; `None` if they are not, because the beacon is missing, is not
    /// readable, or is not refreshed by any instance. A group with an owner that does not light it never becomes calm
    /// enough for rare listings.
    pub(super) fn trusted_until(&self, context: &Context) -> Option<Moment> {
        let known = self.known.as_ref()?;
        let read_until = self.read_at.filter(|_| self.failed_reads < MOST_MISSED)? + context.settings.lease_duration();
        let too_old = known.received + (OLDEST * context.settings.lease_duration()).saturating_sub(known.age);
        Some(read_until.min(too_old)).filter(|until| *until > context.now)
    }

    /// Returns when to read or to light it next. An instance that ends reads it no more.
    pub(super) fn next_wake(&self, context: &Context) -> Option<Moment> {
        [
            self.next_read_at.filter(|_| context.takes_part()),
            self.light_due_at(context),
            self.awaited_since.map(|since| since + context.settings.request_timeout),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// An instance that ends does not wait.
    fn light_due_at(&self, context: &Context) -> Option<Moment> {
        match self {
            Self { has_news: false, .. } | Self { lighting: true, .. } => None,
            _ if context.is_ending() => Some(context.now),
            _ => Some(self.next_light_at),
        }
    }

    /// Returns whether an instance that has nothing else to do before its end waits for its light: for one request.
    pub(super) fn is_awaited(&mut self, context: &Context) -> bool {
        let since = *self.awaited_since.get_or_insert(context.now);
        (self.lighting || self.has_news) && context.now < since + context.settings.request_timeout
    }

    /// Records that the listing that begins now will cover what the beacon has shown. Returns whether that is new.
    pub(super) fn start_listing(&mut self) -> bool {
        self.covered_next = self.known.as_ref().map(|known| known.change);
        self.covered_next != self.covered
    }

    /// Records that the listing has ended. A change of this instance that was written meanwhile is covered, too.
    pub(super) fn end_listing(&mut self, succeeded: bool) {
        let next = self.covered_next.take();
        if succeeded {
            self.covered = self.covered.max(next);
        }
    }

    /// Records something that other instances should look at.
    pub(super) fn report_change(&mut self) {
        self.has_news = true;
    }

    /// Reads and lights it when that is due.
    pub(super) fn start_requests(&mut self, context: &mut Context) {
        if context.takes_part() && self.next_read_at.is_some_and(|at| at <= context.now) {
            self.next_read_at = None;
            self.sent = context.now;
            context.push_request(StorageRequest::ReadBeacon);
        }
        if self.light_due_at(context).is_some_and(|at| at <= context.now) {
            self.has_news = false;
            self.lighting = true;
            self.next_light_at = context.now
                + Backoff::new(BETWEEN_LIGHTS, context.settings.lease_duration()).wait_after(self.numberless_reads);
            context.push_request(StorageRequest::LightBeacon(self.known.clone()));
        }
    }

    /// Returns whether it shows a change that no listing of this instance covers.
    pub(super) fn on_read(&mut self, context: &mut Context, outcome: Result<Option<Beacon>>) -> bool {
        let spread = 0.95 + context.random_chance() / 10.0;
        self.next_read_at = Some(context.now + read_wait(context).mul_f64(spread));
        let found = match outcome {
            Ok(Some(found)) if found.change > 0 => found,
            // It is missing, or another program has written it: an instance must light it before it shows anything. If
            // that program writes it again and again, the lights are useless, and become rare.
            Ok(_) => {
                self.known = None;
                self.numberless_reads = self.numberless_reads.saturating_add(1);
                self.report_change();
                return false;
            }
            Err(error) => {
                let wait = Backoff::new(read_wait(context), read_wait(context).max(context.settings.interval()))
                    .wait_after(self.failed_reads)
                    .max(context.settings.retry_after(&error));
                self.failed_reads = self.failed_reads.saturating_add(1);
                self.next_read_at = Some(context.now + wait.mul_f64(spread));
                context.push_note(Note::BeaconFailed(error));
                return false;
            }
        };
        self.failed_reads = 0;
        self.numberless_reads = 0;
        // A response from before the last write of this instance shows nothing.
        if self.known.as_ref().is_some_and(|known| found.change < known.change) {
            return false;
        }
        self.read_at = Some(self.sent);
        // At a random moment, so that usually one instance refreshes it for all.
        let refreshed_from = context.settings.lease_duration().mul_f64(0.5 + context.random_chance() / 2.0);
        if found.age_at(context.now) >= refreshed_from {
            context.push_request(StorageRequest::RefreshBeacon(found.clone()));
        }
        let change = Some(self.known.insert(found).change);
        change != self.covered && change != self.covered_next
    }

    /// A change that this instance has reported needs no listing of its own, unless it replaced the change of another.
    pub(super) fn on_lit(&mut self, context: &mut Context, outcome: Result<Option<Lit>>) {
        self.lighting = false;
        match outcome {
            Ok(lit) => {
                self.failed_lights = 0;
                if let Some(Lit { beacon, replaced }) = lit {
                    for covered in [&mut self.covered, &mut self.covered_next] {
                        if covered.is_some() && *covered == replaced {
                            *covered = Some(beacon.change);
                        }
                    }
                    self.known = Some(beacon);
                }
            }
            // An instance that ends does not wait for it: the others find what it released when they list.
            Err(_) if context.is_ending() => {}
            Err(error) => {
                let wait =
                    Backoff::new(BETWEEN_LIGHTS, context.settings.lease_duration()).wait_after(self.failed_lights);
                self.failed_lights = self.failed_lights.saturating_add(1);
                self.next_light_at = context.now + wait.max(context.settings.retry_after(&error));
                self.report_change();
                context.push_note(Note::BeaconFailed(error));
            }
        }
    }

    pub(super) fn on_refreshed(&mut self, context: &mut Context, outcome: Result<Option<Beacon>>) {
        match outcome {
            Ok(Some(refreshed)) if self.known.as_ref().is_some_and(|known| known.change == refreshed.change) => {
                self.known = Some(refreshed);
            }
            Ok(_) => {}
            Err(error) => context.push_note(Note::BeaconFailed(error)),
        }
    }
}

fn read_wait(context: &Context) -> Duration {
    context.settings.config.beacon_read_wait(context.members)
}
