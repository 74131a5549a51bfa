//! When a token is used and when another one is asked for: decisions over plain values. Moments are those of a
//! [`LeaseClock`](crate::clock::LeaseClock).

use std::sync::Arc;
use std::time::Duration;

use azure_core::Error;
use azure_core::credentials::{AccessToken, Secret};
use time::OffsetDateTime;

/// How long before its expiry a token is replaced. `azure_core` and `azure_identity` start at the same time, and the
/// latter hands out the token that it has until then.
const EARLY: Duration = Duration::from_secs(5 * 60);

/// A token that came with little time left is kept for this time at least: its issuer would return the same one again.
const SHORTEST_USE: Duration = Duration::from_secs(30);

/// How long a token counts as valid that came expired. Issuers return no such tokens, so the local clock is wrong. If
/// the guess is wrong, the storage refuses the token, which costs one request.
const TRUST: Duration = Duration::from_secs(5 * 60);

/// A refresh that has not reported for this time is on a runtime that is blocked or gone.
const SILENCE: Duration = Duration::from_secs(2);

/// The pause after the first failed refresh, and the longest one, while the token in hand is valid.
const PAUSES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(30));

/// The same while there is no valid token, and requests wait.
const PAUSES_WITHOUT_TOKEN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// A token, and when it is of use.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) secret: Secret,
    expires: Duration,
    replaced_from: Duration,
}

impl Token {
    /// Reads the local time once. A clock that is set later changes nothing about this token.
    pub(super) fn received(token: AccessToken, local_time: OffsetDateTime, now: Duration) -> Self {
        let left = Duration::try_from(token.expires_on - local_time).unwrap_or_default();
        let left = if left.is_zero() { TRUST } else { left };
        let kept = left.saturating_sub(EARLY).max(SHORTEST_USE.min(left / 2));
        Self { secret: token.token, expires: now + left, replaced_from: now + kept }
    }
}

/// The token in hand and what is known of the attempts to replace it.
#[derive(Debug, Default)]
pub(super) struct Refreshes {
    token: Option<Arc<Token>>,
    running: Option<Running>,
    failed: Option<Failed>,
    begun: u64,
}

#[derive(Debug)]
struct Running {
    number: u64,
    seen: Duration,
}

#[derive(Debug)]
struct Failed {
    at: Duration,
    times: u32,
    failure: Failure,
}

/// Why a refresh brought no token.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) error: Arc<Error>,
    /// The issuer may grant the same request later.
    pub(super) is_temporary: bool,
}

/// What a request does next.
#[derive(Debug)]
pub(super) enum Step {
    Use(Arc<Token>),
    Fail(Arc<Error>),
    Wait,
}

impl Refreshes {
    /// Begins a refresh if one is due. Returns its number.
    pub(super) fn begin(&mut self, now: Duration) -> Option<u64> {
        let token = self.valid_token(now);
        let is_wanted = token.is_none_or(|token| token.replaced_from <= now);
        let is_running = self.running.as_ref().is_some_and(|running| now < running.seen + SILENCE);
        let is_pausing = self.failed.as_ref().is_some_and(|it| now < it.at + pause(it.times, token.is_some()));
        if !is_wanted || is_running || is_pausing {
            return None;
        }
        self.begun += 1;
        self.running = Some(Running { number: self.begun, seen: now });
        Some(self.begun)
    }

    /// What a request does that needs a token now. A refusal of the issuer is no reason to wait: it holds until the
    /// next attempt.
    pub(super) fn step(&self, now: Duration) -> Step {
        if let Some(token) = self.valid_token(now) {
            return Step::Use(Arc::clone(token));
        }
        match &self.failed {
            Some(Failed { failure, .. }) if self.running.is_none() && !failure.is_temporary => {
                Step::Fail(Arc::clone(&failure.error))
            }
            _ => Step::Wait,
        }
    }

    /// Notes that this refresh is still running.
    pub(super) fn seen(&mut self, number: u64, now: Duration) {
        if let Some(running) = self.running.as_mut().filter(|running| running.number == number) {
            running.seen = now;
        }
    }

    /// Ends a refresh. One that was given up may still bring a token where there is none.
    pub(super) fn settle(&mut self, number: u64, outcome: Result<Token, Failure>, now: Duration) {
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
                let times = self.failed.as_ref().map_or(0, |failed| failed.times) + 1;
                self.failed = Some(Failed { at: now, times, failure });
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// Drops a token that the storage refused, unless it was replaced since the request left.
    pub(super) fn discard(&mut self, refused: &Arc<Token>) {
        self.token.take_if(|token| Arc::ptr_eq(token, refused));
    }

    /// Why the last refresh failed, if it did.
    pub(super) fn last_error(&self) -> Option<&Arc<Error>> {
        self.failed.as_ref().map(|failed| &failed.failure.error)
    }

    /// For how long the token in hand is valid.
    pub(super) fn valid_for(&self, now: Duration) -> Option<Duration> {
        self.valid_token(now).map(|token| token.expires.saturating_sub(now))
    }

    fn valid_token(&self, now: Duration) -> Option<&Arc<Token>> {
        self.token.as_ref().filter(|token| now < token.expires)
    }
}

fn pause(failures: u32, has_token: bool) -> Duration {
    let (first, longest) = if has_token { PAUSES } else { PAUSES_WITHOUT_TOKEN };
    first.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(longest)
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
        Token::received(token, LOCAL_TIME, NOW)
    }

    fn failure(is_temporary: bool) -> Result<Token, Failure> {
        let error = Arc::new(Error::with_message(ErrorKind::Credential, "no"));
        Err(Failure { error, is_temporary })
    }

    #[test]
    fn a_token_is_replaced_early_and_a_short_lived_one_not_at_once() {
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
    fn one_refresh_runs_at_a_time_unless_it_falls_silent() {
        let mut refreshes = Refreshes::default();
        assert_eq!(refreshes.begin(NOW), Some(1));
        for second in 0..60 {
            refreshes.seen(1, NOW + seconds(second));
            assert_eq!(refreshes.begin(NOW + seconds(second)), None);
        }
        let silent = NOW + seconds(59) + SILENCE;
        assert_eq!(refreshes.begin(NOW + seconds(60)), None);
        assert_eq!(refreshes.begin(silent), Some(2));
        refreshes.seen(1, silent + seconds(2));
        assert_eq!(refreshes.begin(silent + SILENCE), Some(3), "the report of an earlier one counts for nothing");
    }

    #[test]
    fn failures_of_a_refresh_that_was_given_up_count_for_nothing_and_its_token_is_used() {
        let mut refreshes = Refreshes::default();
        assert_eq!((refreshes.begin(NOW), refreshes.begin(NOW + SILENCE)), (Some(1), Some(2)));
        refreshes.settle(1, failure(false), NOW);
        assert!(refreshes.last_error().is_none() && refreshes.running.is_some());
        refreshes.settle(1, Ok(token(3600)), NOW);
        assert!(matches!(refreshes.step(NOW), Step::Use(_)));
        let in_hand = Arc::clone(refreshes.token.as_ref().unwrap());
        refreshes.settle(1, Ok(token(60)), NOW);
        assert!(Arc::ptr_eq(&in_hand, refreshes.token.as_ref().unwrap()));
        refreshes.settle(2, Ok(token(60)), NOW);
        assert!(!Arc::ptr_eq(&in_hand, refreshes.token.as_ref().unwrap()), "the current one replaces any");
    }

    #[test]
    fn pauses_between_failed_refreshes_grow_and_are_short_without_a_token() {
        for (has_token, expected) in [(true, [5, 10, 20, 30, 30]), (false, [1, 2, 4, 5, 5])] {
            let token = has_token.then(|| Arc::new(Token { replaced_from: NOW, ..token(3600) }));
            let mut refreshes = Refreshes { token, ..Refreshes::default() };
            let mut now = NOW;
            for pause in expected {
                let number = refreshes.begin(now).unwrap();
                refreshes.settle(number, failure(true), now);
                now += seconds(pause).saturating_sub(Duration::from_millis(1));
                assert_eq!(refreshes.begin(now), None);
                now += Duration::from_millis(1);
            }
        }
    }

    #[test]
    fn a_long_pause_is_over_when_the_token_expires() {
        let mut refreshes = Refreshes { token: Some(Arc::new(token(240))), ..Refreshes::default() };
        let mut now = NOW + seconds(100);
        for _ in 0..4 {
            let number = refreshes.begin(now).unwrap();
            refreshes.settle(number, failure(true), now);
            now += seconds(30);
        }
        let number = refreshes.begin(NOW + seconds(220)).unwrap();
        refreshes.settle(number, failure(true), NOW + seconds(220));
        assert_eq!(refreshes.begin(NOW + seconds(239)), None);
        assert!(refreshes.begin(NOW + seconds(240)).is_some());
    }

    #[test]
    fn a_request_waits_for_a_silent_issuer_and_not_for_one_that_refuses() {
        let mut refreshes = Refreshes::default();
        assert!(matches!(refreshes.step(NOW), Step::Wait));
        let number = refreshes.begin(NOW).unwrap();
        refreshes.settle(number, failure(true), NOW);
        assert!(matches!(refreshes.step(NOW), Step::Wait));
        let number = refreshes.begin(NOW + seconds(1)).unwrap();
        refreshes.settle(number, failure(false), NOW + seconds(1));
        assert!(matches!(refreshes.step(NOW + seconds(1)), Step::Fail(_)));
        refreshes.begin(NOW + seconds(9)).unwrap();
        assert!(matches!(refreshes.step(NOW + seconds(9)), Step::Wait), "the issuer is asked again");
    }

    #[test]
    fn only_the_token_that_was_refused_is_dropped() {
        let mut refreshes = Refreshes { token: Some(Arc::new(token(3600))), ..Refreshes::default() };
        refreshes.discard(&Arc::new(token(3600)));
        let Step::Use(in_hand) = refreshes.step(NOW) else { panic!("{refreshes:?}") };
        refreshes.discard(&in_hand);
        assert!(matches!(refreshes.step(NOW), Step::Wait));
        assert!(refreshes.begin(NOW).is_some());
    }

    #[test]
    fn debug_shows_no_secret() {
        let refreshes = Refreshes { token: Some(Arc::new(token(3600))), ..Refreshes::default() };
        assert!(!format!("{refreshes:?}").contains("hush"));
    }
}
