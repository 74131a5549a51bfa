// A processor of the JavaScript SDK, told about by JSON lines.
//
// node processor.mjs <settings as JSON> takes its share of the partitions. It tells its owner id first, then what it
// processes, before the checkpoint behind it, and what goes wrong. It leaves in good order when its standard input ends.
import { readFileSync } from "node:fs";
import { EventHubConsumerClient, earliestEventPosition } from "@azure/event-hubs";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";

const settings = JSON.parse(process.argv[2]);
const say = (line) => console.log(JSON.stringify(line));

function version(name) {
  const manifest = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return `${name} ${JSON.parse(readFileSync(manifest, "utf8")).version}`;
}

const handlers = {
  async processEvents(events, context) {
    if (events.length > 0) {
      say({ processed: events.map((event) => event.sequenceNumber), partition: context.partitionId });
      await context.updateCheckpoint(events.at(-1));
    }
  },

  async processError(error, context) {
    say({ failed: `partition ${context.partitionId || "any"}: ${error}` });
  },
};

const store = new BlobCheckpointStore(new ContainerClient(settings.storage, settings.container));
// The only way to name the port that leaves the namespace alone.
const eventHub = settings.event_hub.replace("sb://localhost/", `sb://localhost:${settings.port}/`);
const client = new EventHubConsumerClient(settings.consumer_group, eventHub, store, {
  loadBalancingOptions: {
    strategy: "greedy",
    updateIntervalInMs: settings.interval_seconds * 1000,
    partitionOwnershipExpirationIntervalInMs: settings.expiry_seconds * 1000,
  },
});
const packages = ["@azure/event-hubs", "@azure/eventhubs-checkpointstore-blob"];
say({ versions: [`Node.js ${process.version}`, ...packages.map(version)].join(", ") });
say({ owner: client.identifier });
client.subscribe(handlers, { startPosition: earliestEventPosition, maxBatchSize: 50, maxWaitTimeInSeconds: 1 });

for await (const _ of process.stdin);
await client.close();
// A timer of the client stays behind, which would keep the process alive.
process.exit();
