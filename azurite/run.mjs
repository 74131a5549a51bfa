// Starts the installed Azurite blob service: node run.mjs <host> <port> [options of Azurite]. Port 0 selects any free
// port; Azurite prints the address that it listens on. It keeps everything in memory, unless there is an option
// --location FOLDER, and ends when its standard input closes, so that it never outlives its parent process.
import { createRequire } from "node:module";

const [host, port, ...options] = process.argv.slice(2);
if (!host || !port) {
  console.error("usage: node run.mjs <host> <port> [options of Azurite]");
  process.exit(2);
}

const keeps = options.includes("--location");
// On this signal Azurite writes its data to disk and exits. It is killed if that takes too long.
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
const require = createRequire(import.meta.url);
// Azurite closes a connection after 5 s without a request, as real storage does after minutes. A write that is sent at that
// moment gets no response, and its outcome is unknown. The option --blobKeepAliveTimeout has no effect.
require("azurite/dist/src/blob/utils/constants.js").DEFAULT_BLOB_KEEP_ALIVE_TIMEOUT = 600;
require("azurite/dist/src/blob/main.js");
