//! Links that are idle for too long.

use std::time::Duration;

use fe2o3_amqp_types::definitions::{Error, LinkError};

use super::message::error;

/// Returns the service's error for an idle link of a receiver (Azure/azure-sdk-for-java#11233).
pub(super) fn idle_receiver(link: &str, limit: Duration) -> Error {
    let text = format!(
        "The link '{link}' is force detached. Code: ServerError. Details: AmqpEventHubConsumer.IdleTimerExpired: Idle \
         timeout: {}.",
        hours(limit)
    );
    error(LinkError::DetachForced, text)
}

/// Returns the service's error for an idle link of a publisher (Azure/azure-event-hubs-node#96).
pub(super) fn idle_sender(link: &str, limit: Duration) -> Error {
    let text = format!(
        "The link '{link}' is force detached by the broker due to errors occurred in publisher. Detach origin: \
         AmqpEventHubPublisher.IdleTimerExpired: Idle timeout: {}.",
        hours(limit)
    );
    error(LinkError::DetachForced, text)
}

fn hours(limit: Duration) -> String {
    let seconds = limit.as_secs();
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_shown_as_by_the_service() {
        let limit = Duration::from_secs(30 * 60);
        let text = idle_receiver("a", limit).description.expect("a text");
        assert!(text.ends_with("AmqpEventHubConsumer.IdleTimerExpired: Idle timeout: 00:30:00."), "{text}");
        let text = idle_sender("a", limit).description.expect("a text");
        assert!(text.ends_with("AmqpEventHubPublisher.IdleTimerExpired: Idle timeout: 00:30:00."), "{text}");
    }
}
