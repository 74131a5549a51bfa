// The checkpoint store of the JavaScript SDK, driven by JSON lines.
//
// node peer.mjs <namespace> <hub> <consumer group>, with CONNECTION_STRING set, responds to each line of its standard
// input with one of {"ok": ...} or {"error": ...}, and ends with it.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { BlobCheckpointStore } from "@azure/eventhubs-checkpointstore-blob";
import { ContainerClient } from "@azure/storage-blob";

const DEADLINE_MS = 30_000;
const [fullyQualifiedNamespace, eventHubName, consumerGroup] = process.argv.slice(2);
const GROUP = { fullyQualifiedNamespace, eventHubName, consumerGroup };

function version(name) {
  const manifest = new URL(`node_modules/${name}/package.json`, import.meta.url);
  return `${name} ${JSON.parse(readFileSync(manifest, "utf8")).version}`;
}

const owned = (ownerships) =>
  ownerships.map(({ partitionId, ownerId, etag }) => ({ partition: partitionId, owner: ownerId, etag }));

const COMMANDS = {
  async versions() {
    const packages = ["@azure/eventhubs-checkpointstore-blob", "@azure/storage-blob"];
    return [`Node.js ${process.version}`, ...packages.map(version)].join(", ");
  },

  async ownerships(store, _command, options) {
    return owned(await store.listOwnership(fullyQualifiedNamespace, eventHubName, consumerGroup, options));
  },

  async claim(store, { partition, owner, etag }, options) {
    const wish = { ...GROUP, partitionId: partition, ownerId: owner, etag: etag ?? undefined };
    return owned(await store.claimOwnership([wish], options));
  },

  async checkpoint(store, { partition, sequence_number: sequenceNumber, offset }, options) {
    await store.updateCheckpoint({ ...GROUP, partitionId: partition, sequenceNumber, offset }, options);
    return null;
  },

  async checkpoints(store, _command, options) {
    const found = await store.listCheckpoints(fullyQualifiedNamespace, eventHubName, consumerGroup, options);
    return found.map(({ partitionId, sequenceNumber, offset }) => ({
      partition: partitionId, sequence_number: sequenceNumber, offset,
    }));
  },
};

async function respond(command) {
  try {
    const store = new BlobCheckpointStore(new ContainerClient(process.env.CONNECTION_STRING, command.container));
    return { ok: await COMMANDS[command.do](store, command, { abortSignal: AbortSignal.timeout(DEADLINE_MS) }) };
  } catch (error) {
    return { error: String(error) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await respond(JSON.parse(line))));
}
