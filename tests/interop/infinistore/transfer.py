"""Writes 1 MiB to InfiniStore, a store of key-value caches, and reads it back, both by RDMA.

usage: transfer.py server DEVICE PORT
       transfer.py client DEVICE PORT HOST
"""

import asyncio
import ctypes
import sys

import infinistore
import uvloop

LENGTH = 1 << 20
BLOCK = 1 << 16


def serve(device, port):
    config = infinistore.ServerConfig(
        manage_port=port + 1,
        service_port=port,
        log_level="info",
        prealloc_size=1,
        dev_name=device,
        ib_port=1,
        link_type="Ethernet",
        minimal_allocate_size=64,
        auto_increase=False,
        evict_interval=5,
        evict_min_threshold=0.6,
        evict_max_threshold=0.8,
    )
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    infinistore.register_server(loop, config)
    print("ready", flush=True)
    loop.run_forever()


async def put_and_take(device, port, host):
    config = infinistore.ClientConfig(
        host_addr=host,
        service_port=port,
        log_level="info",
        connection_type=infinistore.TYPE_RDMA,
        dev_name=device,
        ib_port=1,
        link_type="Ethernet",
    )
    store = infinistore.InfinityConnection(config)
    await store.connect_async()
    content = bytes((i * 7 + (i >> 8) * 13) & 255 for i in range(LENGTH))
    source = ctypes.create_string_buffer(content, LENGTH)
    target = ctypes.create_string_buffer(LENGTH)
    for buffer in (source, target):
        store.register_mr(ctypes.addressof(buffer), LENGTH)
    blocks = [(f"block {at}", at) for at in range(0, LENGTH, BLOCK)]
    await store.rdma_write_cache_async(blocks, BLOCK, ctypes.addressof(source))
    await store.rdma_read_cache_async(blocks, BLOCK, ctypes.addressof(target))
    assert target.raw == content, "something else came back"
    print("verified", flush=True)
    store.close()


role, device, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "server":
    serve(device, port)
else:
    asyncio.run(put_and_take(device, port, sys.argv[4]))
