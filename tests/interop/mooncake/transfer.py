"""Transfers 1 MiB with Mooncake's transfer engine, and verifies every byte.

usage: transfer.py target HOST DEVICE                      (first; prints HOST:PORT and an address)
       transfer.py initiator HOST DEVICE HOST:PORT ADDRESS

HOST is the address by which the other side reaches this one. The target verifies the initiator's data when its
standard input is closed, and then ends.
"""

import ctypes
import sys

from mooncake.engine import TransferEngine

LENGTH = 1 << 20


def pattern(seed):
    """Returns bytes that reveal a displacement of any length."""
    return bytes((i * 7 + (i >> 8) * 13 + seed) & 255 for i in range(LENGTH))


def main(role, host, device, *peer):
    engine = TransferEngine()
    assert engine.initialize(host, "P2PHANDSHAKE", "rdma", device) == 0
    buffer = ctypes.create_string_buffer(LENGTH)
    address = ctypes.addressof(buffer)
    assert engine.register_memory(address, LENGTH) == 0
    if role == "target":
        print("ready", f"{host}:{engine.get_rpc_port()}", address, flush=True)
        sys.stdin.read()
        assert buffer.raw == pattern(2), "the target has something else"
    else:
        segment, remote = peer[0], int(peer[1])
        for seed in (1, 2):
            ctypes.memmove(address, pattern(seed), LENGTH)
            assert engine.transfer_sync_write(segment, address, remote, LENGTH) == 0
            ctypes.memset(address, 0, LENGTH)
            assert engine.transfer_sync_read(segment, address, remote, LENGTH) == 0
            assert buffer.raw == pattern(seed), "something else came back"
    print(role, "has verified", flush=True)


main(*sys.argv[1:])
