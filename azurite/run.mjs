// Starts the installed Azurite blob service: node run.mjs <host> <port> [options of Azurite]. Port 0 takes any free one;
// Azurite prints the address it listens on. It keeps everything in memory and ends when its standard input closes, so that it
// never outlives whoever started it, however that one ended.
import { createRequire } from "node:module";

const [host, port, ...options] = process.argv.slice(2);
if (!host || !port) {
  console.error("usage: node run.mjs <host> <port> [options of Azurite]");
  process.exit(2);
}

process.stdin.on("end", () => process.exit(0));
process.stdin.on("error", () => process.exit(0));
process.stdin.resume();

process.argv.splice(
  2, Infinity,
  "--blobHost", host,
  "--blobPort", port,
  "--inMemoryPersistence",
  "--skipApiVersionCheck",
  "--disableTelemetry",
  "--silent",
  ...options,
);
createRequire(import.meta.url)("azurite/dist/src/blob/main.js");
