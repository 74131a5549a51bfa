package peers;

import com.azure.messaging.eventhubs.EventData;
import com.azure.messaging.eventhubs.EventProcessorClient;
import com.azure.messaging.eventhubs.EventProcessorClientBuilder;
import com.azure.messaging.eventhubs.LoadBalancingStrategy;
import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.Checkpoint;
import com.azure.messaging.eventhubs.models.ErrorContext;
import com.azure.messaging.eventhubs.models.EventBatchContext;
import com.azure.messaging.eventhubs.models.EventPosition;
import com.azure.messaging.eventhubs.models.InitializationContext;
import com.azure.storage.blob.BlobContainerAsyncClient;
import com.azure.storage.blob.BlobContainerClientBuilder;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.OutputStream;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import reactor.core.publisher.Flux;

/**
 * A processor of the Java SDK that reports by JSON lines.
 *
 * <p>{@code Processor <settings as JSON>} takes its share of the partitions. It reports its owner ID first, then the
 * events that it processes, before their checkpoint, and its errors. Before the events of a partition, it reports after
 * which checkpoint it starts. It shuts down gracefully when its standard input ends.
 */
final class Processor {
    private static final int MAX_BATCH = 50;
    private static final Duration MAX_WAIT = Duration.ofSeconds(1);

    /** Remembers the checkpoints that its processor has listed: it lists them immediately before it starts a partition. */
    private static final class Store extends BlobCheckpointStore {
        private final Map<String, Long> checkpoints = new ConcurrentHashMap<>();

        Store(BlobContainerAsyncClient container) {
            super(container);
        }

        @Override
        public Flux<Checkpoint> listCheckpoints(String namespace, String hub, String group) {
            return super.listCheckpoints(namespace, hub, group)
                .doOnNext(listed -> checkpoints.put(listed.getPartitionId(), listed.getSequenceNumber()));
        }
    }

    private Processor() {
    }

    public static void main(String[] args) throws Exception {
        var settings = Json.parse(args[0]);
        Json.report(Map.of("versions", Json.versions()));
        var processor = processor(settings);
        Json.report(Map.of("owner", processor.getIdentifier()));
        processor.start();
        System.in.transferTo(OutputStream.nullOutputStream());
        processor.stop();
        System.exit(0);
    }

    private static EventProcessorClient processor(JsonNode settings) {
        var container = new BlobContainerClientBuilder().connectionString(settings.path("storage").asText())
            .containerName(settings.path("container").asText());
        var store = new Store(container.buildAsyncClient());
        return new EventProcessorClientBuilder().connectionString(settings.path("event_hub").asText())
            .customEndpointAddress("http://localhost:" + settings.path("port").asInt())
            .consumerGroup(settings.path("consumer_group").asText())
            .checkpointStore(store)
            .loadBalancingStrategy(LoadBalancingStrategy.GREEDY)
            .loadBalancingUpdateInterval(Duration.ofSeconds(settings.path("interval_seconds").asInt()))
            .partitionOwnershipExpirationInterval(Duration.ofSeconds(settings.path("expiry_seconds").asInt()))
            .initialPartitionEventPosition(partition -> EventPosition.earliest())
            .processPartitionInitialization(context -> started(context, store))
            .processEventBatch(Processor::process, MAX_BATCH, MAX_WAIT)
            .processError(Processor::failed)
            .buildEventProcessorClient();
    }

    private static void started(InitializationContext context, Store store) {
        var partition = context.getPartitionContext().getPartitionId();
        var line = new HashMap<String, Object>();
        line.put("started", partition);
        line.put("checkpoint", store.checkpoints.get(partition));
        Json.report(line);
    }

    private static void process(EventBatchContext context) {
        var events = context.getEvents();
        if (!events.isEmpty()) {
            var numbers = events.stream().map(EventData::getSequenceNumber).toList();
            Json.report(Map.of("processed", numbers, "partition", context.getPartitionContext().getPartitionId()));
            context.updateCheckpoint();
        }
    }

    private static void failed(ErrorContext context) {
        var partition = context.getPartitionContext().getPartitionId();
        Json.report(Map.of("failed", "partition " + partition + ": " + context.getThrowable()));
    }
}
