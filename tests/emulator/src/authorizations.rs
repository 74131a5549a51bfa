//! The authorizations of a connection: which paths its tokens cover, and until when.
//!
//! A client puts a token for the path of each node that it uses. In the service the token authorizes that path and the
//! paths below it until it expires. Then the links of the path are detached with `amqp:unauthorized-access`, about 65
//! minutes after a client attached that lets its token expire (Azure/azure-sdk-for-python#5314), and attaches are
//! rejected with the same condition (Azure/azure-event-hubs-node#174), until the client puts another token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::sleep;

use super::address::{MANAGEMENT, path};
use super::clock::EmulatorClock;

/// How often a link compares the clock with the expiry of its authorizations. Not one sleep until the expiry, because
/// the wall clock and tokio's clock may run apart, for example in a test with paused time.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The authorizations of a connection, by the segments of their path in lower case.
#[derive(Debug)]
pub(super) struct Authorizations {
    clock: Arc<EmulatorClock>,
    by_path: watch::Sender<BTreeMap<Vec<String>, Authorization>>,
}

#[derive(Debug)]
struct Authorization {
    /// The path as the client wrote it.
    name: String,
    expires_at: OffsetDateTime,
}

impl Authorizations {
    pub(super) fn new(clock: Arc<EmulatorClock>) -> Self {
        Self { clock, by_path: watch::Sender::new(BTreeMap::new()) }
    }

    /// Authorizes the path and the paths below it until this time. Replaces an authorization of the same path.
    pub(super) fn grant(&self, name: &str, expires_at: OffsetDateTime) {
        let authorization = Authorization { name: name.to_owned(), expires_at };
        self.by_path.send_modify(|by_path| {
            by_path.insert(path(name), authorization);
        });
    }

    /// Returns whether a link to this address is authorized now.
    pub(super) fn permit(&self, address: &str) -> bool {
        permits(&self.by_path.borrow(), &path(address), self.clock.now())
    }

    /// Waits until a link to this address is not authorized anymore.
    pub(super) async fn lost(&self, address: &str) {
        let node = path(address);
        let mut changed = self.by_path.subscribe();
        let mut moved = self.clock.moved();
        while permits(&changed.borrow_and_update(), &node, self.clock.now()) {
            tokio::select! {
                _ = changed.changed() => {}
                _ = moved.changed() => {}
                () = sleep(CHECK_EVERY) => {}
            }
        }
    }

    /// Ends all authorizations whose path contains this text. Returns their number.
    pub(super) fn expire(&self, text: &str) -> usize {
        let now = self.clock.now();
        let mut expired = 0;
        self.by_path.send_modify(|by_path| {
            for authorization in by_path.values_mut() {
                if authorization.expires_at > now && authorization.name.contains(text) {
                    authorization.expires_at = now;
                    expired += 1;
                }
            }
        });
        expired
    }
}

/// Clients attach to `$management` without the name of an event hub. If they have put a token for a path that ends with
/// it, as the Rust and JavaScript clients do, that token decides. The Java client puts none: its requests have the
/// token (`ManagementChannel.java` of `azure-messaging-eventhubs` 5.21).
fn permits(by_path: &BTreeMap<Vec<String>, Authorization>, node: &[String], now: OffsetDateTime) -> bool {
    let is_management = |path: &[String]| path.last().is_some_and(|last| last == MANAGEMENT);
    let mut valid = by_path.iter().filter(|(_, authorization)| now < authorization.expires_at).map(|(path, _)| path);
    if is_management(node) {
        return valid.any(|path| is_management(path)) || !by_path.keys().any(|path| is_management(path));
    }
    valid.any(|path| node.starts_with(path))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn authorizations() -> Authorizations {
        Authorizations::new(Arc::default())
    }

    fn in_an_hour(of: &Authorizations) -> OffsetDateTime {
        of.clock.now() + HOUR
    }

    #[test]
    fn a_token_covers_its_path_and_the_paths_below() {
        for (granted, node, permitted) in [
            ("amqps://host/hub/ConsumerGroups/g/Partitions/3", "hub/consumergroups/G/Partitions/3", true),
            ("amqps://host/hub/ConsumerGroups/g/Partitions/3", "hub/ConsumerGroups/g/Partitions/4", false),
            ("amqps://host/hub/ConsumerGroups/g/Partitions/3", "hub/ConsumerGroups/g/Partitions/31", false),
            ("amqps://host/hub/ConsumerGroups/g", "amqps://other/hub/ConsumerGroups/g/Partitions/4", true),
            ("sb://host/hub", "hub/Partitions/1", true),
            ("sb://host/hub", "hub", true),
            ("sb://host/hub/Partitions/1", "hub", false),
            ("sb://host/", "hub/Partitions/1", true),
            ("sb://host/other", "hub", false),
            ("sb://host/hub", "$management", true),
            ("sb://host/hub/$management", "hub/Partitions/1", false),
        ] {
            let authorizations = authorizations();
            authorizations.grant(granted, in_an_hour(&authorizations));
            assert_eq!(authorizations.permit(node), permitted, "{granted} for {node}");
        }
    }

    #[test]
    fn the_token_for_management_decides_if_there_is_one() {
        let authorizations = authorizations();
        assert!(authorizations.permit("$management"));
        authorizations.grant("sb://host/hub/$management", in_an_hour(&authorizations));
        authorizations.grant("sb://host/hub/Partitions/1", in_an_hour(&authorizations));
        assert_eq!(authorizations.expire("$management"), 1);
        assert!(!authorizations.permit("$management") && authorizations.permit("hub/Partitions/1"));
    }

    #[tokio::test]
    async fn an_authorization_lasts_as_long_as_its_token() {
        let authorizations = authorizations();
        authorizations.grant("hub", in_an_hour(&authorizations));
        assert!(authorizations.lost("hub").now_or_never().is_none());

        authorizations.clock.advance(HOUR);

        assert!(!authorizations.permit("hub"));
        assert!(authorizations.lost("hub").now_or_never().is_some());
        authorizations.grant("hub", in_an_hour(&authorizations));
        assert!(authorizations.permit("hub"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_link_notices_that_the_clock_was_moved() {
        let authorizations = authorizations();
        authorizations.grant("hub", in_an_hour(&authorizations));
        tokio::join!(authorizations.lost("hub/Partitions/0"), async { authorizations.clock.advance(HOUR) });
    }
}
