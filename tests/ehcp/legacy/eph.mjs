// EventProcessorHost of Node.js: node eph.mjs <settings as JSON>. It processes the event hub until it has written the
// checkpoints of the settings, and shuts down gracefully.
import { createRequire } from "node:module";

const require = createRequire(import.meta.url);
const rhea = require("rhea");
const { EventProcessorHost } = require("@azure/event-processor-host");

const settings = JSON.parse(process.argv[2]);

// It would connect with TLS, to the port of the service.
const connect = rhea.create_connection.bind(rhea);
rhea.create_connection = (options) =>
  connect({ ...options, host: "127.0.0.1", port: settings.port, transport: "tcp" });

const host = EventProcessorHost.createFromConnectionString(
  settings.owner,
  settings.storage,
  settings.container,
  settings.event_hub,
  {
    consumerGroup: settings.consumer_group,
    startupScanDelay: 1,
    fastScanInterval: 1,
    onEphError: (failure) => console.error(failure),
  },
);

// It expects an element for absent metadata in listings. Azure sends one, Azurite does not.
const blobs = host._context.blobService;
const list = blobs.listBlobsSegmented.bind(blobs);
blobs.listBlobsSegmented = async (...args) => {
  const listed = await list(...args);
  for (const entry of listed.entries) entry.metadata ??= {};
  return listed;
};

const wanted = new Map(Object.entries(settings.checkpoints));
const written = new Promise((done) => {
  const onEvent = async (context, event) => {
    if (wanted.get(context.partitionId) !== event.sequenceNumber) return;
    await context.checkpoint();
    wanted.delete(context.partitionId);
    if (wanted.size === 0) done();
  };
  host.start(onEvent, (failure) => console.error(failure));
});
await written;
await host.stop();
process.exit(0);
