"""The checkpoint manager of EventProcessorHost of Python: python eph.py <settings as JSON>.

It creates the leases, takes them over and writes the checkpoints of the settings. The host itself cannot be run here:
its AMQP client always uses TLS. When the host stops, it does not release its leases: they expire. To save the time of
that, this program releases them, without writing the records again.
"""

import asyncio
import json
import sys
from types import SimpleNamespace

from azure.eventprocessorhost import AzureStorageCheckpointLeaseManager
from azure.eventprocessorhost.checkpoint import Checkpoint

SETTINGS = json.loads(sys.argv[1])


async def main():
    manager = AzureStorageCheckpointLeaseManager(
        connection_string=SETTINGS["storage"], lease_container_name=SETTINGS["container"], lease_duration=15
    )
    host = SimpleNamespace(
        loop=asyncio.get_running_loop(),
        guid=SETTINGS["owner"],
        host_name=SETTINGS["owner"],
        eh_config=SimpleNamespace(consumer_group=SETTINGS["consumer_group"]),
    )
    manager.initialize(host)
    for partition, position in SETTINGS["positions"].items():
        await manager.create_checkpoint_if_not_exists_async(partition)
        lease = await manager.get_lease_async(partition)
        assert await manager.acquire_lease_async(lease), partition
        if position:
            assert await manager.update_checkpoint_async(lease, Checkpoint(partition, *position)), partition
        manager.storage_client.release_blob_lease(SETTINGS["container"], partition, lease.token)


asyncio.run(main())
