//! What a test can do to a running event hub.

use std::time::Duration;

use fe2o3_amqp_types::definitions::Error;
use time::OffsetDateTime;

use super::encoding::data_head;
use super::event::Event;
use super::message::{condition, error};
use super::sas::SasKey;
use super::{DEFAULT_DETACH_CONDITION, EventHubEmulator};

impl EventHubEmulator {
    /// Adds partitions until there are this many; does nothing if there are already. As in the service, partitions
    /// cannot be removed.
    ///
    /// `$management` reports them at once, and events that name no partition are distributed to them too. As in the
    /// service, the events of a partition key may go to another partition from now on.
    ///
    /// ```
    /// # use eventhubs_emulator::EventHubEmulator;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), eventhubs_emulator::StartError> {
    /// let hub = EventHubEmulator::builder("orders").with_partitions(2).start("127.0.0.1:0").await?;
    /// hub.grow_to(3);
    /// assert_eq!(hub.partition_ids(), ["0", "1", "2"]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn grow_to(&self, partitions: u16) {
        self.hub().grow_to(partitions);
    }

    /// Expires the events of the partition before this sequence number. Returns their number, or `None` if there is no
    /// such partition. A number after the last event, such as `i64::MAX`, empties the partition.
    ///
    /// Events that were already sent to a receiver are not affected.
    #[must_use = "`None` means that nothing expired: there is no such partition"]
    pub fn expire_before(&self, partition_id: &str, sequence_number: i64) -> Option<usize> {
        self.partition(partition_id).map(|partition| partition.expire_before(sequence_number))
    }

    /// Stores an event with this body as the next event of the partition, and returns its sequence number, or `None` if
    /// there is no such partition.
    #[must_use = "`None` means that nothing was stored"]
    pub fn append(&self, partition_id: &str, body: &[u8]) -> Option<i64> {
        self.append_raw(partition_id, &[&data_head(body.len())[..], body].concat())
    }

    /// Stores an encoded AMQP message as the next event of the partition, and returns its sequence number; or `None` if
    /// there is no such partition, or if the bytes do not consist of sections of a message.
    ///
    /// The hub inserts its annotations, and keeps all other sections as they are, so the event may be one that clients
    /// cannot decode: with a list as application property, or with a data section that holds null.
    #[must_use = "`None` means that nothing was stored"]
    pub fn append_raw(&self, partition_id: &str, message: &[u8]) -> Option<i64> {
        let hub = self.hub();
        let event = Event::parse(message)?;
        let end = hub.partition(partition_id)?.append(&[event], event.partition_key(), hub.now());
        Some(end - 1)
    }

    /// Removes the event with this sequence number, as the compaction of a hub does with a superseded event or with a
    /// tombstone (learn.microsoft.com, event-hubs/log-compaction). Returns whether it existed.
    ///
    /// The event is never delivered, except to receivers that it was sent to before. If it is the last one, the
    /// properties of the partition still report its number as the end.
    #[must_use = "`false` means that there is no such event"]
    pub fn remove_event(&self, partition_id: &str, sequence_number: i64) -> bool {
        self.partition(partition_id).is_some_and(|partition| partition.remove(sequence_number))
    }

    /// Detaches all receivers of the partition in this consumer group with [`DEFAULT_DETACH_CONDITION`]. Returns their
    /// number, or `None` if there is no such partition or group.
    ///
    /// They may attach again at once. The official client does so on its own, unless its retries are disabled, and it
    /// starts at its original start position.
    ///
    /// When the first link fails, the official Rust client 0.16 sets up all links of its connection again. If several
    /// links fail at once, it may not recover: its streams then end with `Link name is not unique`, or with a session
    /// that has stopped. [`cut_connections`](Self::cut_connections) can have the same effect.
    #[must_use = "`None` means that nothing was detached: there is no such partition or group"]
    pub fn detach_receivers(&self, consumer_group: &str, partition_id: &str) -> Option<usize> {
        self.detach_receivers_with(consumer_group, partition_id, DEFAULT_DETACH_CONDITION)
    }

    /// Does the same as [`detach_receivers`](Self::detach_receivers), with a given AMQP error condition, such as
    /// `amqp:link:stolen` or `com.microsoft:server-busy`.
    #[must_use = "`None` means that nothing was detached: there is no such partition or group"]
    pub fn detach_receivers_with(&self, consumer_group: &str, partition_id: &str, condition: &str) -> Option<usize> {
        let hub = self.hub();
        let group = hub.consumer_group(consumer_group)?;
        let reason = detached_on_demand(condition);
        hub.partition(partition_id).map(|partition| partition.receivers().detach(group, &reason))
    }

    /// Detaches all links over which events are published to the event hub, with [`DEFAULT_DETACH_CONDITION`]. Returns
    /// their number.
    ///
    /// They may attach again at once. The official Rust client 0.16 does so at its next send. If it sends while the
    /// detach is in transit, it may wait forever for the response, so set a timeout.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn detach_senders(&self) -> usize {
        self.detach_senders_with(DEFAULT_DETACH_CONDITION)
    }

    /// Does the same as [`detach_senders`](Self::detach_senders), with a given AMQP error condition.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn detach_senders_with(&self, condition: &str) -> usize {
        self.hub().senders().detach(&detached_on_demand(condition))
    }

    /// Moves the wall clock of the emulator ahead. It decides when tokens expire, and when events were enqueued and
    /// event hubs created from now on.
    ///
    /// Links whose token has expired by then are detached with `amqp:unauthorized-access` soon, in at most a second.
    /// Time passes by itself, too: the clock is the machine's plus what was added.
    ///
    /// Clients do not see this clock. A shared access signature that a client creates is valid for an hour or so by the
    /// clock of the machine, and is rejected when the emulator is farther ahead. Use [`entra_token`](Self::entra_token)
    /// in such tests.
    pub fn advance_clock(&self, by: Duration) {
        self.namespace().clock.advance(by);
    }

    /// Ends the authorizations whose path contains this text, on all connections of the emulator, as if their tokens
    /// had expired. Returns their number.
    ///
    /// An authorization begins when a client puts a token. Its path is the URL that the client names, such as
    /// `amqps://localhost/orders/ConsumerGroups/$Default/Partitions/3`; the empty text means all. The links of the path
    /// and below are detached with `amqp:unauthorized-access`, as by the service (Azure/azure-event-hubs-node#174), and
    /// attaches are rejected until the client puts a token for the path again.
    ///
    /// The token in the requests of an open management link, and the token of another connection for the same path that
    /// is put later, are not affected.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn expire_authorizations(&self, path: &str) -> usize {
        self.namespace().expire_authorizations(path)
    }

    /// Returns a new bearer token, as of Microsoft Entra ID, that the emulator accepts until this time for everything.
    ///
    /// The time is compared with the [clock](Self::advance_clock) of the emulator. A credential in a test returns the
    /// token as its access token.
    #[must_use]
    pub fn entra_token(&self, expires_at: OffsetDateTime) -> String {
        self.namespace().tokens.issue(expires_at)
    }

    /// Replaces the accepted shared access key. Tokens that were signed with the former key are rejected from now on,
    /// in put-tokens and in requests for properties.
    ///
    /// Links that are open stay open until their token expires, as in the service: see
    /// [`expire_authorizations`](Self::expire_authorizations). [`connection_string`](Self::connection_string) returns
    /// the new key.
    pub fn replace_key(&self, name: impl Into<String>, key: impl Into<String>) {
        self.namespace().tokens.replace_key(SasKey { name: name.into(), secret: key.into() });
    }

    /// Deletes the event hub, and creates it again with the settings of the builder: empty, and with a later
    /// [`created_at`](Self::created_at). The links of its senders and receivers are detached with `amqp:not-found` and
    /// the text of the service for an entity that does not exist (microsoft/AzureMonitorAddonForSplunk#8). They may
    /// attach again at once.
    pub fn recreate(&self) {
        self.namespace().recreate(self.place);
    }

    /// Lets the namespace fail over to a secondary one, as an alias of the geo-disaster recovery does. Data are not
    /// replicated: the secondary has the same event hubs, empty, and accepts the same tokens.
    ///
    /// New connections reach the secondary. The open ones stay with the former primary, without an error, as in the
    /// service (Azure/azure-event-hubs-dotnet#385). Nobody publishes there anymore, unless over an open connection.
    /// From now on all methods of the handles act on the secondary, except [`cut_connections`](Self::cut_connections)
    /// and [`advance_clock`](Self::advance_clock), which act on both.
    pub fn move_namespace(&self) {
        self.server.alias.fail_over();
    }

    /// Makes another region the primary one of a geo-replicated event hub by force, before it has the newest `lost`
    /// events of the partition: they are gone, and the next events get their sequence numbers. The offsets of the next
    /// events name the next epoch.
    ///
    /// The receivers of the partition are detached with [`DEFAULT_DETACH_CONDITION`], because the former region is
    /// gone. Does nothing if there is no such partition. What else the service does to clients is not known.
    pub fn promote(&self, partition_id: &str, lost: usize) {
        if let Some(partition) = self.partition(partition_id) {
            partition.promote(lost);
            partition.receivers().detach_all(&detached_on_demand(DEFAULT_DETACH_CONDITION));
        }
    }

    /// Cuts all open connections of the emulator, to all its event hubs, and returns their number.
    ///
    /// There is no AMQP close: to the clients it looks like a network failure. They may connect again at once.
    #[expect(clippy::must_use_candidate, reason = "it is called for its effect")]
    pub fn cut_connections(&self) -> usize {
        self.server.connections.cut()
    }
}

fn detached_on_demand(name: &str) -> Error {
    error(condition(name), "The link is detached on demand.")
}
