//! Decides when a token is used and when it is refreshed, as a function of plain values. Moments are times of a
//! [`LeaseClock`](crate::clock::LeaseClock).

use std::sync::Arc;
use std::time::Duration;

use azure_core::Error;
use azure_core::credentials::{AccessToken, Secret};
use time::OffsetDateTime;

use crate::backoff::Backoff;

/// How long before its expiry a token is replaced. `azure_core` and `azure_identity` begin at the same time; until then
/// `azure_identity` returns its current token.
const EARLY: Duration = Duration::from_secs(5 * 60);

/// A new token that expires soon is kept at least for this time, because its issuer would return the same token again.
const SHORTEST_USE: Duration = Duration::from_secs(30);

/// How long a token is considered valid that is expired when it arrives. Issuers return no such tokens, so the local
/// clock must be wrong. If this assumption is wrong, the storage rejects the token, which costs one request.
const TRUST: Duration = Duration::from_secs(5 * 60);

/// A refresh that has not reported for this long runs on a runtime that is blocked or has ended.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// The pauses after failed refreshes while the current token is valid.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(30));

/// The same without a valid token, while requests wait.
const BACKOFF_WITHOUT_TOKEN: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));

/// A token and the times of its use.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) secret: Secret,
    expires: Duration,
    replaced_from: Duration,
}

impl Token {
    /// Creates a token from a response. The local time is used only here, so a later change of the clock does not
    /// affect this token.
    pub(super) fn from_response(token: AccessToken, local_time: OffsetDateTime, now: Duration) -> Self {
        let left = Duration::try_from(token.expires_on - local_time).unwrap_or_default();
        let left = if left.is_zero() { TRUST } else { left };
        Self {
            secret: token.token,
            expires: now + left,
            replaced_from: now + left.saturating_sub(EARLY).max(SHORTEST_USE.min(left / 2)),
        }
    }
}

/// The current token and the state of the attempts to replace it.
#[derive(Debug, Default)]
pub(super) struct Refreshes {
    token: Option<Arc<Token>>,
    running: Option<RunningRefresh>,
    failed: Option<LastFailure>,
    begun: u64,
}

#[derive(Debug)]
struct RunningRefresh {
    number: u64,
    seen: Duration,
}

#[derive(Debug)]
struct LastFailure {
    at: Duration,
    times: u32,
    failure: RefreshFailure,
}

/// Why a refresh returned no token.
#[derive(Clone, Debug)]
pub(super) struct RefreshFailure {
    pub(super) error: Arc<Error>,
    /// The issuer may grant the same request later.
    pub(super) is_temporary: bool,
}

/// The next step of a request.
#[derive(Debug)]
pub(super) enum Step {
    Use(Arc<Token>),
    Fail(Arc<Error>),
    Wait,
}

impl Refreshes {
    /// Begins a refresh if one is due, and returns its number.
    pub(super) fn begin_refresh(&mut self, now: Duration) -> Option<u64> {
        let token = self.valid_token(now);
        let is_wanted = token.is_none_or(|token| token.replaced_from <= now);
        let is_running = self.running.as_ref().is_some_and(|running| now < running.seen + STALL_TIMEOUT);
        let backoff = if token.is_some() { BACKOFF } else { BACKOFF_WITHOUT_TOKEN };
        let is_pausing = self
            .failed
            .as_ref()
            .is_some_and(|failed| now < failed.at + backoff.wait_after(failed.times.saturating_sub(1)));
        if !is_wanted || is_running || is_pausing {
            return None;
        }
        self.begun += 1;
        self.running = Some(RunningRefresh { number: self.begun, seen: now });
        Some(self.begun)
    }

    /// Returns the next step of a request that needs a token now. If the issuer rejected the last attempt, the request
    /// fails and does not wait: the result does not change until the next attempt.
    pub(super) fn next_step(&self, now: Duration) -> Step {
        if let Some(token) = self.valid_token(now) {
            return Step::Use(Arc::clone(token));
        }
        match &self.failed {
            Some(LastFailure { failure, .. }) if self.running.is_none() && !failure.is_temporary => {
                Step::Fail(Arc::clone(&failure.error))
            }
            _ => Step::Wait,
        }
    }

    /// Records that this refresh is still running.
    pub(super) fn record_running(&mut self, number: u64, now: Duration) {
        if let Some(running) = self.running.as_mut().filter(|running| running.number == number) {
            running.seen = now;
        }
    }

    /// Ends a refresh. An abandoned refresh can still provide a token if there is no valid one.
    pub(super) fn end_refresh(&mut self, number: u64, outcome: Result<Token, RefreshFailure>, now: Duration) {
        let is_current = self.running.as_ref().is_some_and(|running| running.number == number);
        if is_current {
            self.running = None;
        }
        match outcome {
            Ok(token) if is_current || self.valid_token(now).is_none() => {
                self.token = Some(Arc::new(token));
                self.failed = None;
            }
            Err(failure) if is_current => {
                self.failed = Some(LastFailure {
                    at: now,
                    times: self.failed.as_ref().map_or(0, |failed| failed.times) + 1,
                    failure,
                });
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Drops a token that the storage rejected, unless it was replaced after the request was sent.
    pub(super) fn discard_token(&mut self, refused: &Arc<Token>) {
        self.token.take_if(|token| Arc::ptr_eq(token, refused));
    }

    /// Returns the error of the last refresh, if it failed.
    pub(super) fn last_error(&self) -> Option<&Arc<Error>> {
        self.failed.as_ref().map(|failed| &failed.failure.error)
    }

    /// Returns how long the current token is still valid.
    pub(super) fn valid_for(&self, now: Duration) -> Option<Duration> {
        self.valid_token(now).map(|token| token.expires.saturating_sub(now))
    }

    fn valid_token(&self, now: Duration) -> Option<&Arc<Token>> {
        self.token.as_ref().filter(|token| now < token.expires)
    }
}

#[cfg(test)]
mod tests {
    use azure_core::error::ErrorKind;
    use time::macros::datetime;

    use super::*;

    const LOCAL_TIME: OffsetDateTime = datetime!(2026-11-20 12:00:00 UTC);
    const NOW: Duration = Duration::from_secs(1000);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn token(lifetime: i64) -> Token {
        let token = AccessToken::new("hush", LOCAL_TIME + time::Duration::seconds(lifetime));
        Token::from_response(token, LOCAL_TIME, NOW)
    }

    fn failure(is_temporary: bool) -> Result<Token, RefreshFailure> {
        let error = Arc::new(Error::with_message(ErrorKind::Credential, "no"));
        Err(RefreshFailure { error, is_temporary })
    }

    #[test]
    fn token_is_replaced_early_but_not_at_once() {
        for (lifetime, kept, used) in [
            (3600, seconds(3300), seconds(3600)),
            (331, seconds(31), seconds(331)),
            (240, seconds(30), seconds(240)),
            (20, seconds(10), seconds(20)),
            (0, seconds(30), TRUST),
            (-7200, seconds(30), TRUST),
        ] {
            let token = token(lifetime);
            assert_eq!((token.replaced_from, token.expires), (NOW + kept, NOW + used), "{lifetime}");
        }
    }

    #[test]
    fn one_refresh_runs_at_a_time_unless_it_stalls() {
        let mut refreshes = Refreshes::default();
        assert_eq!(refreshes.begin_refresh(NOW), Some(1));
        for second in 0..60 {
            refreshes.record_running(1, NOW + seconds(second));
            assert_eq!(refreshes.begin_refresh(NOW + seconds(second)), None);
        }
        let stalled = NOW + seconds(59) + STALL_TIMEOUT;
        assert_eq!(refreshes.begin_refresh(NOW + seconds(60)), None);
        assert_eq!(refreshes.begin_refresh(stalled), Some(2));
        refreshes.record_running(1, stalled + seconds(2));
        assert_eq!(
            refreshes.begin_refresh(stalled + STALL_TIMEOUT),
            Some(3),
            "the report of an earlier refresh is ignored"
        );
    }

    /// The failure of an abandoned refresh is ignored. Its token is used if there is no other.
    #[test]
    fn abandoned_refresh_can_only_succeed() {
        let mut refreshes = Refreshes::default();
        assert_eq!((refreshes.begin_refresh(NOW), refreshes.begin_refresh(NOW + STALL_TIMEOUT)), (Some(1), Some(2)));
        refreshes.end_refresh(1, failure(false), NOW);
        assert!(refreshes.last_error().is_none() && refreshes.running.is_some());
        refreshes.end_refresh(1, Ok(token(3600)), NOW);
        assert!(matches!(refreshes.next_step(NOW), Step::Use(_)));
        let current = Arc::clone(refreshes.token.as_ref().unwrap());
        refreshes.end_refresh(1, Ok(token(60)), NOW);
        assert!(Arc::ptr_eq(&current, refreshes.token.as_ref().unwrap()));
        refreshes.end_refresh(2, Ok(token(60)), NOW);
        assert!(!Arc::ptr_eq(&current, refreshes.token.as_ref().unwrap()), "the current refresh replaces any token");
    }

    #[test]
    fn pauses_grow_and_are_short_without_a_token() {
        for (has_token, expected) in [(true, [5, 10, 20, 30, 30]), (false, [1, 2, 4, 5, 5])] {
            let token = has_token.then(|| Arc::new(Token { replaced_from: NOW, ..token(3600) }));
            let mut refreshes = Refreshes { token, ..Refreshes::default() };
            let mut now = NOW;
            for pause in expected {
                let number = refreshes.begin_refresh(now).unwrap();
                refreshes.end_refresh(number, failure(true), now);
                now += seconds(pause).saturating_sub(Duration::from_millis(1));
                assert_eq!(refreshes.begin_refresh(now), None);
                now += Duration::from_millis(1);
            }
        }
    }

    #[test]
    fn long_pause_ends_when_the_token_expires() {
        let mut refreshes = Refreshes { token: Some(Arc::new(token(240))), ..Refreshes::default() };
        let mut now = NOW + seconds(100);
        for _ in 0..4 {
            let number = refreshes.begin_refresh(now).unwrap();
            refreshes.end_refresh(number, failure(true), now);
            now += seconds(30);
        }
        let number = refreshes.begin_refresh(NOW + seconds(220)).unwrap();
        refreshes.end_refresh(number, failure(true), NOW + seconds(220));
        assert_eq!(refreshes.begin_refresh(NOW + seconds(239)), None);
        assert!(refreshes.begin_refresh(NOW + seconds(240)).is_some());
    }

    #[test]
    fn request_waits_for_temporary_failures_only() {
        let mut refreshes = Refreshes::default();
        assert!(matches!(refreshes.next_step(NOW), Step::Wait));
        let number = refreshes.begin_refresh(NOW).unwrap();
        refreshes.end_refresh(number, failure(true), NOW);
        assert!(matches!(refreshes.next_step(NOW), Step::Wait));
        let number = refreshes.begin_refresh(NOW + seconds(1)).unwrap();
        refreshes.end_refresh(number, failure(false), NOW + seconds(1));
        assert!(matches!(refreshes.next_step(NOW + seconds(1)), Step::Fail(_)));
        refreshes.begin_refresh(NOW + seconds(9)).unwrap();
        assert!(matches!(refreshes.next_step(NOW + seconds(9)), Step::Wait), "a new refresh runs");
    }

    #[test]
    fn only_the_rejected_token_is_dropped() {
        let mut refreshes = Refreshes { token: Some(Arc::new(token(3600))), ..Refreshes::default() };
        refreshes.discard_token(&Arc::new(token(3600)));
        let Step::Use(current) = refreshes.next_step(NOW) else { panic!("{refreshes:?}") };
        refreshes.discard_token(&current);
        assert!(matches!(refreshes.next_step(NOW), Step::Wait));
        assert!(refreshes.begin_refresh(NOW).is_some());
    }

    #[test]
    fn debug_shows_no_secret() {
        let refreshes = Refreshes { token: Some(Arc::new(token(3600))), ..Refreshes::default() };
        assert!(!format!("{refreshes:?}").contains("hush"));
    }
}
