"""A consumer of the Python SDK for the comparison of peers.

python consumer.py <settings as JSON> checkpoints after every batch. It reports its versions, the first event of each
partition, and that it has processed the expected number of events, and ends when its standard input ends.
"""

import asyncio
import json
import os
import platform
import sys
from importlib.metadata import version

from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

SETTINGS = json.loads(sys.argv[1])
PACKAGES = ("azure-eventhub", "azure-eventhub-checkpointstoreblob-aio")

met = set()
processed = 0


def report(line):
    print(json.dumps(line), flush=True)


async def on_event_batch(context, events):
    global processed
    if not events:
        return
    if context.partition_id not in met:
        met.add(context.partition_id)
        report({"first": context.partition_id})
    await context.update_checkpoint(events[-1])
    before, processed = processed, processed + len(events)
    if before < SETTINGS["expected"] <= processed:
        report({"processed": processed})


async def on_error(context, error):
    print(f"partition {context.partition_id if context else 'any'}: {error!r}", file=sys.stderr)


async def main():
    versions = [f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)]
    report({"versions": ", ".join(versions)})
    strategy = {"load_balancing_strategy": LoadBalancingStrategy.GREEDY} if SETTINGS["greedy"] else {}
    async with BlobCheckpointStore.from_connection_string(SETTINGS["storage"], SETTINGS["container"]) as store:
        client = EventHubConsumerClient.from_connection_string(
            SETTINGS["event_hub"],
            SETTINGS["consumer_group"],
            checkpoint_store=store,
            custom_endpoint_address=f"sb://localhost:{SETTINGS['port']}",
            **strategy,
        )
        receiving = asyncio.create_task(
            client.receive_batch(
                on_event_batch, on_error=on_error, starting_position="-1", max_batch_size=100, max_wait_time=1
            )
        )
        await asyncio.to_thread(sys.stdin.read)
        # The other consumers end at once, too.
        receiving.cancel()
        os._exit(0)


asyncio.run(main())
