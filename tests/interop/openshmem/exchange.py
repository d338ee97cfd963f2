"""Tests puts, gets and atomics in the symmetric memory of an OpenSHMEM job.

usage: exchange.py LIBRARY
oshrun starts it on every processing element. LIBRARY is Open MPI's liboshmem.so, called by ctypes.
"""

import ctypes
import sys

SIZES = [1, 8, 1000, 4096, 65536, 300_001]
ROOM = max(SIZES)
COUNT = 50

lib = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
lib.shmem_malloc.restype = ctypes.c_void_p
lib.shmem_malloc.argtypes = [ctypes.c_size_t]
for transfer in (lib.shmem_putmem, lib.shmem_getmem):
    transfer.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    transfer.restype = None
lib.shmem_long_atomic_fetch_add.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_int]
lib.shmem_long_atomic_fetch_add.restype = ctypes.c_long


def pattern(element, size):
    unit = bytes((element * 37 + place * 11 + size) % 251 for place in range(251))
    return (unit * (size // 251 + 1))[:size]


def expect(what, got, wanted):
    if got != wanted:
        print(f"element {me}: {what} is wrong", flush=True)
        lib.shmem_global_exit(1)


lib.shmem_init()
me, all_of_us = lib.shmem_my_pe(), lib.shmem_n_pes()
after, before = (me + 1) % all_of_us, (me - 1) % all_of_us
target, counter = lib.shmem_malloc(ROOM), lib.shmem_malloc(8)
ctypes.memset(counter, 0, 8)
for size in SIZES:
    ctypes.memset(target, 0, ROOM)
    lib.shmem_barrier_all()
    data = ctypes.create_string_buffer(pattern(me, size), size)
    lib.shmem_putmem(target, data, size, after)
    lib.shmem_barrier_all()
    expect(f"put of {size} bytes", ctypes.string_at(target, size), pattern(before, size))
    got = ctypes.create_string_buffer(size)
    lib.shmem_getmem(got, target, size, after)
    expect(f"get of {size} bytes", got.raw, data.raw)
    lib.shmem_barrier_all()
seen = [lib.shmem_long_atomic_fetch_add(counter, 1, 0) for _ in range(COUNT)]
expect("order of the counter", seen, sorted(set(seen)))
lib.shmem_barrier_all()
if me == 0:
    total = int.from_bytes(ctypes.string_at(counter, 8), sys.byteorder)
    expect("count", total, COUNT * all_of_us)
    print(f"{all_of_us} elements have compared everything", flush=True)
lib.shmem_barrier_all()
lib.shmem_finalize()
