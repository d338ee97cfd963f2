"""Writes, flushes and reads the memory of another process through librpma, and verifies the data.

usage: transfer.py server|client ADDRESS PORT
The functions of librpma.so.0 are called by ctypes, so that no compiler is needed.
"""

import ctypes
import sys
from ctypes import POINTER, byref, c_int, c_size_t, c_uint8, c_void_p

role, address, port = sys.argv[1], sys.argv[2].encode(), sys.argv[3].encode()

SIZE = 1 << 20
BLOCKS = [1, 8, 4096, 70_001, 300_000]
READ_SRC, READ_DST, WRITE_SRC, WRITE_DST, FLUSH_VISIBLE = 1, 2, 4, 8, 16
ESTABLISHED, CLOSED = 0, 1
VISIBILITY = 1
ALWAYS = 3

lib = ctypes.CDLL("librpma.so.0", use_errno=True)
lib.rpma_err_2str.restype = ctypes.c_char_p


class PrivateData(ctypes.Structure):
    _fields_ = [("ptr", c_void_p), ("len", c_uint8)]


class Completion(ctypes.Structure):
    """struct ibv_wc"""

    _fields_ = [("wr_id", ctypes.c_uint64), ("status", c_int), ("rest", ctypes.c_uint32 * 9)]


TYPES = {
    "rpma_write": [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_int, c_void_p],
    "rpma_read": [c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_int, c_void_p],
    "rpma_flush": [c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_int, c_void_p],
    "rpma_mr_reg": [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_void_p)],
    "rpma_mr_remote_from_descriptor": [c_void_p, c_size_t, POINTER(c_void_p)],
}
for name, types in TYPES.items():
    getattr(lib, name).argtypes = types


def call(name, *arguments):
    result = getattr(lib, name)(*arguments)
    if result != 0:
        text = lib.rpma_err_2str(result).decode()
        sys.exit(f"{role}: {name}: {text}, errno {ctypes.get_errno()}")


def made(name, *arguments):
    """Returns the object that a function returns through its last argument."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def await_event(connection, wanted):
    event = c_int()
    call("rpma_conn_next_event", connection, byref(event))
    if event.value != wanted:
        sys.exit(f"{role}: event {event.value} in place of {wanted}")


def await_completion(connection, number):
    queue, got, completion = made("rpma_conn_get_cq", connection), c_int(), Completion()
    call("rpma_cq_wait", queue)
    call("rpma_cq_get_wc", queue, 1, byref(completion), byref(got))
    if (got.value, completion.wr_id, completion.status) != (1, number, 0):
        sys.exit(f"{role}: completion {completion.wr_id} with status {completion.status}")


def pattern(seed, size):
    unit = bytes((seed * 37 + place * 11) % 251 for place in range(251))
    return (unit * (size // 251 + 1))[:size]


def serve(peer):
    memory = ctypes.create_string_buffer(SIZE)
    region = made("rpma_mr_reg", peer, memory, SIZE, READ_SRC | WRITE_DST | FLUSH_VISIBLE)
    size = c_size_t()
    call("rpma_mr_get_descriptor_size", region, byref(size))
    descriptor = ctypes.create_string_buffer(size.value)
    call("rpma_mr_get_descriptor", region, descriptor)
    endpoint = made("rpma_ep_listen", peer, address, port)
    print("ready", flush=True)
    request = made("rpma_ep_next_conn_req", endpoint, None)
    data = PrivateData(ctypes.cast(descriptor, c_void_p), size.value)
    connection = made("rpma_conn_req_connect", byref(request), byref(data))
    await_event(connection, ESTABLISHED)
    await_event(connection, CLOSED)
    place = 0
    for seed, size in enumerate(BLOCKS):
        if memory.raw[place : place + size] != pattern(seed, size):
            sys.exit(f"server: the block of {size} bytes is wrong")
        place += size
    call("rpma_conn_disconnect", connection)
    call("rpma_conn_delete", byref(connection))
    call("rpma_ep_shutdown", byref(endpoint))
    call("rpma_mr_dereg", byref(region))


def use(peer):
    memory = ctypes.create_string_buffer(SIZE)
    region = made("rpma_mr_reg", peer, memory, SIZE, READ_DST | WRITE_SRC)
    request = made("rpma_conn_req_new", peer, address, port, None)
    connection = made("rpma_conn_req_connect", byref(request), None)
    await_event(connection, ESTABLISHED)
    data = PrivateData()
    call("rpma_conn_get_private_data", connection, byref(data))
    remote = made("rpma_mr_remote_from_descriptor", data.ptr, data.len)
    place = 0
    for seed, size in enumerate(BLOCKS):
        contents = pattern(seed, size)
        ctypes.memmove(memory, contents, size)
        call("rpma_write", connection, remote, place, region, 0, size, 1, None)
        call("rpma_flush", connection, remote, place, size, VISIBILITY, ALWAYS, 2 * seed + 1)
        await_completion(connection, 2 * seed + 1)
        ctypes.memset(memory, 0, SIZE)
        call("rpma_read", connection, region, 0, remote, place, size, ALWAYS, 2 * seed + 2)
        await_completion(connection, 2 * seed + 2)
        if memory.raw[:size] != contents:
            sys.exit(f"client: the block of {size} bytes is wrong")
        place += size
    call("rpma_conn_disconnect", connection)
    await_event(connection, CLOSED)
    call("rpma_mr_remote_delete", byref(remote))
    call("rpma_conn_delete", byref(connection))
    call("rpma_mr_dereg", byref(region))


context = made("rpma_utils_get_ibv_context", address, 0 if role == "server" else 1)
peer = made("rpma_peer_new", context)
serve(peer) if role == "server" else use(peer)
call("rpma_peer_delete", byref(peer))
print(f"{role} has compared everything", flush=True)
