// Starts the installed Azurite blob service: node run.mjs <host> <port> [options of Azurite]. Port 0 takes any free one;
// Azurite prints the address it listens on. It keeps everything in memory, unless there is an option --location FOLDER, and
// ends when its standard input closes, so that it never outlives whoever started it, however that one ended.
import { createRequire } from "node:module";

const [host, port, ...options] = process.argv.slice(2);
if (!host || !port) {
  console.error("usage: node run.mjs <host> <port> [options of Azurite]");
  process.exit(2);
}

const keeps = options.includes("--location");
// With this signal Azurite writes down what it has, and ends: soon, or it is ended.
const end = () => {
  if (!keeps) process.exit(0);
  setTimeout(() => process.exit(1), 10_000).unref();
  process.kill(process.pid, "SIGTERM");
};
process.stdin.on("end", end);
process.stdin.on("error", end);
process.stdin.resume();

process.argv.splice(
  2, Infinity,
  "--blobHost", host,
  "--blobPort", port,
  ...(keeps ? [] : ["--inMemoryPersistence"]),
  "--skipApiVersionCheck",
  "--disableTelemetry",
  "--silent",
  ...options,
);
createRequire(import.meta.url)("azurite/dist/src/blob/main.js");
