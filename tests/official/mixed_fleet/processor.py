"""A processor of the Python SDK that reports by JSON lines.

python processor.py <settings as JSON> takes its share of the partitions. It reports its owner ID first, then the
events that it processes, before their checkpoint, and its errors. Before the events of a partition, it reports after
which checkpoint it starts. It shuts down gracefully when its standard input ends.
"""

import asyncio
import json
import platform
import sys
from importlib.metadata import version

from azure.eventhub.aio import EventHubConsumerClient
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

SETTINGS = json.loads(sys.argv[1])
PACKAGES = ("azure-eventhub", "azure-eventhub-checkpointstoreblob-aio")


def report(line):
    print(json.dumps(line), flush=True)


class Store(BlobCheckpointStore):
    """Reports the name under which it claims: the SDK draws it and does not expose it.

    Remembers the checkpoints that the client has listed: it lists them immediately before it starts a partition.
    """

    owner = None
    checkpoints = {}

    async def list_checkpoints(self, *group, **kwargs):
        listed = list(await super().list_checkpoints(*group, **kwargs))
        self.checkpoints = {found["partition_id"]: found["sequence_number"] for found in listed}
        return listed

    async def claim_ownership(self, ownership_list, **kwargs):
        names = {wish["owner_id"] for wish in ownership_list} - {"", self.owner}
        for self.owner in names:
            report({"owner": self.owner})
        return await super().claim_ownership(ownership_list, **kwargs)


async def on_event_batch(context, events):
    if events:
        report({"processed": [event.sequence_number for event in events], "partition": context.partition_id})
        await context.update_checkpoint(events[-1])


def on_partition_initialize(store):
    async def report_start(context):
        partition = context.partition_id
        report({"started": partition, "checkpoint": store.checkpoints.get(partition)})

    return report_start


async def on_error(context, error):
    report({"failed": f"partition {context.partition_id if context else 'any'}: {error!r}"})


def consumer(store):
    return EventHubConsumerClient.from_connection_string(
        SETTINGS["event_hub"],
        SETTINGS["consumer_group"],
        checkpoint_store=store,
        custom_endpoint_address=f"sb://localhost:{SETTINGS['port']}",
        load_balancing_interval=SETTINGS["interval_seconds"],
        partition_ownership_expiration_interval=SETTINGS["expiry_seconds"],
    )


async def main():
    report({"versions": ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in PACKAGES)])})
    async with Store.from_connection_string(SETTINGS["storage"], SETTINGS["container"]) as store:
        client = consumer(store)
        receiving = asyncio.create_task(
            client.receive_batch(
                on_event_batch,
                on_error=on_error,
                on_partition_initialize=on_partition_initialize(store),
                starting_position="-1",
                max_batch_size=50,
                max_wait_time=1,
            )
        )
        await asyncio.to_thread(sys.stdin.read)
        await client.close()
        await receiving


asyncio.run(main())
