package peers;

import com.azure.messaging.eventhubs.checkpointstore.blob.BlobCheckpointStore;
import com.azure.messaging.eventhubs.models.Checkpoint;
import com.azure.messaging.eventhubs.models.PartitionOwnership;
import com.azure.storage.blob.BlobContainerClientBuilder;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import reactor.core.publisher.Flux;

/**
 * The checkpoint store of the Java SDK, driven by JSON lines.
 *
 * <p>{@code Peer <namespace> <hub> <consumer group>}, with CONNECTION_STRING set, responds to each line of its standard
 * input with one of {"ok": ...} or {"error": ...}, and ends with it.
 */
final class Peer {
    private static final Duration DEADLINE = Duration.ofSeconds(30);

    private final String namespace;
    private final String hub;
    private final String group;

    private Peer(String namespace, String hub, String group) {
        this.namespace = namespace;
        this.hub = hub;
        this.group = group;
    }

    public static void main(String[] args) throws Exception {
        var peer = new Peer(args[0], args[1], args[2]);
        var input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            Json.report(peer.respond(Json.parse(line)));
        }
        System.exit(0);
    }

    private Map<String, Object> respond(JsonNode command) {
        var response = new HashMap<String, Object>();
        try {
            response.put("ok", execute(command));
        } catch (RuntimeException error) {
            response.put("error", error.toString());
        }
        return response;
    }

    private Object execute(JsonNode command) {
        var container = new BlobContainerClientBuilder().connectionString(System.getenv("CONNECTION_STRING"))
            .containerName(command.path("container").asText());
        var store = new BlobCheckpointStore(container.buildAsyncClient());
        return switch (command.path("do").asText()) {
            case "versions" -> Json.versions();
            case "ownerships" -> owned(store.listOwnership(namespace, hub, group));
            case "claim" -> owned(store.claimOwnership(List.of(wish(command))));
            case "checkpoint" -> store.updateCheckpoint(position(command)).block(DEADLINE);
            case "checkpoints" -> store.listCheckpoints(namespace, hub, group).map(Peer::reached).collectList().block(DEADLINE);
            default -> throw new IllegalArgumentException(command.toString());
        };
    }

    private PartitionOwnership wish(JsonNode command) {
        return new PartitionOwnership().setFullyQualifiedNamespace(namespace)
            .setEventHubName(hub)
            .setConsumerGroup(group)
            .setPartitionId(command.path("partition").asText())
            .setOwnerId(command.path("owner").asText())
            .setETag(command.path("etag").textValue());
    }

    private Checkpoint position(JsonNode command) {
        return new Checkpoint().setFullyQualifiedNamespace(namespace)
            .setEventHubName(hub)
            .setConsumerGroup(group)
            .setPartitionId(command.path("partition").asText())
            .setSequenceNumber(command.path("sequence_number").asLong())
            .setOffsetString(command.path("offset").asText());
    }

    private static List<Map<String, Object>> owned(Flux<PartitionOwnership> ownerships) {
        return ownerships.map(Peer::owned).collectList().block(DEADLINE);
    }

    private static Map<String, Object> owned(PartitionOwnership ownership) {
        return Map.of("partition", ownership.getPartitionId(), "owner", ownership.getOwnerId(), "etag", ownership.getETag());
    }

    private static Map<String, Object> reached(Checkpoint checkpoint) {
        return Map.of("partition", checkpoint.getPartitionId(), "sequence_number", checkpoint.getSequenceNumber(), "offset",
            checkpoint.getOffsetString());
    }
}
