package peers;

import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.ErrorContext;
import com.azure.messaging.eventhubs.models.EventBatchContext;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.storage.blob.BlobContainerClientBuilder;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.OutputStream;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A consumer of the Java SDK for the comparison of peers.
 *
 * <p>{@code Consumer <settings as JSON>} checkpoints after every batch. It reports its versions, the first event of each
 * partition, and that it has processed the expected number of events, and ends when its standard input ends.
 */
final class Consumer {
    private static final int MAX_BATCH = 100;
    private static final Duration MAX_WAIT = Duration.ofSeconds(1);

    private final long expected;
    private final Set<String> met = ConcurrentHashMap.newKeySet();
    private final AtomicLong processed = new AtomicLong();

    private Consumer(long expected) {
        this.expected = expected;
    }

    public static void main(String[] args) throws Exception {
        var settings = Json.parse(args[0]);
        Json.report(Map.of("versions", Json.versions()));
        new Consumer(settings.path("expected").asLong()).start(settings);
        System.in.transferTo(OutputStream.nullOutputStream());
        // The other consumers end at once, too.
        Runtime.getRuntime().halt(0);
    }

    private void start(JsonNode settings) {
        var container = new BlobContainerClientBuilder().connectionString(settings.path("storage").asText())
            .containerName(settings.path("container").asText());
        var builder = new EventProcessorClientBuilder().connectionString(settings.path("event_hub").asText())
            .customEndpointAddress("http://localhost:" + settings.path("port").asInt())
            .consumerGroup(settings.path("consumer_group").asText())
            .checkpointStore(new BlobCheckpointStore(container.buildAsyncClient()))
            .initialPartitionEventPosition(partition -> EventPosition.earliest())
            .processEventBatch(this::process, MAX_BATCH, MAX_WAIT)
            .processError(Consumer::failed);
        if (settings.path("greedy").asBoolean()) {
            builder.loadBalancingStrategy(LoadBalancingStrategy.GREEDY);
        }
        builder.buildEventProcessorClient().start();
    }

    private void process(EventBatchContext context) {
        var events = context.getEvents();
        if (events.isEmpty()) {
            return;
        }
        var partition = context.getPartitionContext().getPartitionId();
        if (met.add(partition)) {
            Json.report(Map.of("first", partition));
        }
        context.updateCheckpoint();
        var after = processed.addAndGet(events.size());
        if (after >= expected && after - events.size() < expected) {
            Json.report(Map.of("processed", after));
        }
    }

    private static void failed(ErrorContext context) {
        System.err.println("partition " + context.getPartitionContext().getPartitionId() + ": " + context.getThrowable());
    }
}
