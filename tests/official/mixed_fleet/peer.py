"""The checkpoint store of the Python SDK, driven by JSON lines.

python peer.py <namespace> <hub> <consumer group>, with CONNECTION_STRING set, responds to each line of its standard
input with one of {"ok": ...} or {"error": ...}, and ends with it.
"""

import asyncio
import json
import os
import platform
import sys
from importlib.metadata import version

from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

DEADLINE_SECONDS = 30
GROUP = sys.argv[1:4]
GROUP_FIELDS = dict(zip(("fully_qualified_namespace", "eventhub_name", "consumer_group"), GROUP))


async def versions(_store, _command):
    packages = ("azure-eventhub", "azure-eventhub-checkpointstoreblob-aio")
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in packages)])


def owned(ownerships):
    return [
        {"partition": found["partition_id"], "owner": found["owner_id"], "etag": found["etag"]} for found in ownerships
    ]


async def ownerships(store, _command):
    return owned(await store.list_ownership(*GROUP))


async def claim(store, command):
    wish = {**GROUP_FIELDS, "partition_id": command["partition"], "owner_id": command["owner"]}
    if command["etag"] is not None:
        wish["etag"] = command["etag"]
    return owned(await store.claim_ownership([wish]))


async def checkpoint(store, command):
    position = {"sequence_number": command["sequence_number"], "offset": command["offset"]}
    await store.update_checkpoint({**GROUP_FIELDS, "partition_id": command["partition"], **position})


async def checkpoints(store, _command):
    return [
        {"partition": found["partition_id"], "sequence_number": found["sequence_number"], "offset": found["offset"]}
        for found in await store.list_checkpoints(*GROUP)
    ]


COMMANDS = {command.__name__: command for command in (versions, ownerships, claim, checkpoint, checkpoints)}


async def respond(command):
    connection_string = os.environ["CONNECTION_STRING"]
    try:
        async with BlobCheckpointStore.from_connection_string(connection_string, command["container"]) as store:
            return {"ok": await asyncio.wait_for(COMMANDS[command["do"]](store, command), DEADLINE_SECONDS)}
    except Exception as error:  # The test reports every error.
        return {"error": repr(error)}


async def main():
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await respond(json.loads(line))), flush=True)


asyncio.run(main())
