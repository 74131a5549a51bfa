// A processor of the JavaScript SDK that reports by JSON lines.
//
// node processor.mjs <settings as JSON> takes its share of the partitions. It reports its owner ID first, then the
// events that it processes, before their checkpoint, and its errors. Before the events of a partition, it reports after
// which checkpoint it starts. It shuts down gracefully when its standard input ends.
import { readFileSync } from "node:fs";
import { EventHubConsumerClient, earliestEventPosition } from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";

const settings = JSON.parse(process.argv[2]);
const report = (line) => console.log(JSON.stringify(line));

function version(name) {
  const manifest = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return `${name} ${JSON.parse(readFileSync(manifest, "utf8")).version}`;
}

// The checkpoints that the client has listed: it lists them immediately before it starts a partition.
let checkpoints = new Map();

class Store extends BlobCheckpointStore {
  async listCheckpoints(...group) {
    const listed = await super.listCheckpoints(...group);
    checkpoints = new Map(listed.map((checkpoint) => [checkpoint.partitionId, checkpoint.sequenceNumber]));
    return listed;
  }
}

const handlers = {
  async processInitialize(context) {
    report({ started: context.partitionId, checkpoint: checkpoints.get(context.partitionId) ?? null });
  },

  async processEvents(events, context) {
    if (events.length > 0) {
      report({ processed: events.map((event) => event.sequenceNumber), partition: context.partitionId });
      await context.updateCheckpoint(events.at(-1));
    }
  },

  async processError(error, context) {
    report({ failed: `partition ${context.partitionId || "any"}: ${error}` });
  },
};

const store = new Store(new ContainerClient(settings.storage, settings.container));
// The only way to pass the port that does not change the namespace.
const eventHub = settings.event_hub.replace("sb://localhost/", `sb://localhost:${settings.port}/`);
const client = new EventHubConsumerClient(settings.consumer_group, eventHub, store, {
  loadBalancingOptions: {
    strategy: "greedy",
    updateIntervalInMs: settings.interval_seconds * 1000,
    partitionOwnershipExpirationIntervalInMs: settings.expiry_seconds * 1000,
  },
});
const packages = ["@azure/event-hubs", "@azure/eventhubs-checkpointstore-blob"];
report({ versions: [`Node.js ${process.version}`, ...packages.map(version)].join(", ") });
report({ owner: client.identifier });
client.subscribe(handlers, { startPosition: earliestEventPosition, maxBatchSize: 50, maxWaitTimeInSeconds: 1 });

for await (const _ of process.stdin);
await client.close();
// A timer of the client remains, which would keep the process running.
process.exit();
