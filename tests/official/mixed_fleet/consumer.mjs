// A consumer of the JavaScript SDK for the comparison of peers.
//
// node consumer.mjs <settings as JSON> checkpoints after every batch. It reports its versions, the first event of each
// partition, and that it has processed the expected number of events, and ends when its standard input ends.
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

const packages = ["@azure/event-hubs", "@azure/eventhubs-checkpointstore-blob"];
report({ versions: [`Node.js ${process.version}`, ...packages.map(version)].join(", ") });

const met = new Set();
let processed = 0;
const handlers = {
  async processEvents(events, context) {
    if (events.length === 0) return;
    if (!met.has(context.partitionId)) {
      met.add(context.partitionId);
      report({ first: context.partitionId });
    }
    await context.updateCheckpoint(events.at(-1));
    const before = processed;
    processed += events.length;
    if (before < settings.expected && processed >= settings.expected) report({ processed });
  },

  async processError(error, context) {
    console.error(`partition ${context.partitionId || "any"}: ${error}`);
  },
};

const store = new BlobCheckpointStore(new ContainerClient(settings.storage, settings.container));
// The only way to pass the port that does not change the namespace.
const eventHub = settings.event_hub.replace("sb://localhost/", `sb://localhost:${settings.port}/`);
const options = settings.greedy ? { loadBalancingOptions: { strategy: "greedy" } } : {};
const client = new EventHubConsumerClient(settings.consumer_group, eventHub, store, options);
client.subscribe(handlers, { startPosition: earliestEventPosition, maxBatchSize: 100, maxWaitTimeInSeconds: 1 });

for await (const _ of process.stdin);
process.exit();
