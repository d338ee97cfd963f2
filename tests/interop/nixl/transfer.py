"""Two NIXL agents in two processes: WRITE and READ over UCX, both verified.

usage: transfer.py target|initiator PORT TRANSPORTS
  PORT        the port of the TCP connection for metadata
  TRANSPORTS  the value of UCX_TLS, without tcp, so that all data is sent by RDMA
"""

import os
import socket
import sys
import time

role, port, transports = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ["UCX_TLS"] = transports
os.environ["UCX_NET_DEVICES"] = "rocade0:1"

import numpy as np  # noqa: E402
from nixl._api import nixl_agent, nixl_agent_config  # noqa: E402

SIZE = 8 << 20
LIMIT_S = 60


def exactly(connection, count):
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            sys.exit(f"{role}: the other side is gone")
        data += part
    return data


def send(connection, data):
    connection.sendall(len(data).to_bytes(8, "little") + data)


def receive(connection):
    return exactly(connection, int.from_bytes(exactly(connection, 8), "little"))


def transfer(agent, operation, here, there, peer):
    handle = agent.initialize_xfer(operation, here, there, peer, b"")
    state = agent.transfer(handle)
    end = time.monotonic() + LIMIT_S
    while state not in ("DONE", "ERR") and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
    if state != "DONE":
        sys.exit(f"{operation} ends as {state}")
    agent.release_xfer_handle(handle)


def target(agent, memory, here, pattern):
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
    send(connection, agent.get_agent_metadata())
    send(connection, agent.get_serialized_descs(here))
    receive(connection)
    assert (memory == pattern).all(), "what was written is not what arrived"
    memory[:] = pattern[::-1]
    send(connection, b"turned round")
    receive(connection)
    print("target has verified", flush=True)


def initiator(agent, memory, here, pattern):
    connection = socket.create_connection(("127.0.0.1", port))
    peer = agent.add_remote_agent(receive(connection))
    there = agent.deserialize_descs(receive(connection))
    memory[:] = pattern
    transfer(agent, "WRITE", here, there, peer)
    send(connection, b"written")
    receive(connection)
    memory[:] = 0
    transfer(agent, "READ", here, there, peer)
    assert (memory == pattern[::-1]).all(), "what was read is not what was there"
    send(connection, b"read")
    print("initiator has verified", flush=True)


agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
memory = np.zeros(SIZE, dtype=np.uint8)
place = (memory.ctypes.data, SIZE, 0)
agent.register_memory([(*place, "")], "DRAM")
here = agent.get_xfer_descs([place], "DRAM")
pattern = (np.arange(SIZE) * 7 % 251).astype(np.uint8)
{"target": target, "initiator": initiator}[role](agent, memory, here, pattern)
