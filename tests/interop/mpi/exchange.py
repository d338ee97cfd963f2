"""Exchanges messages, collectives and one-sided operations between the ranks of an MPI job, and verifies all data.

mpirun starts it on every rank. It needs mpi4py, but not numpy.
"""

import array
import sys

from mpi4py import MPI

SIZES = [0, 1, 7, 64, 1000, 4096, 8193, 65536, 300_001, 1 << 20]


def pattern(rank, size):
    """Returns bytes that depend on the sender and the offset."""
    unit = bytes((rank * 37 + place * 11) % 251 for place in range(251))
    return (unit * (size // 251 + 1))[:size]


def expect(what, got, wanted):
    if got != wanted:
        print(f"rank {MPI.COMM_WORLD.rank}: {what} is wrong", flush=True)
        MPI.COMM_WORLD.Abort(1)


def messages(comm):
    """Sends messages around the ring: eager and rendezvous, expected and unexpected."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in SIZES:
        got, data = bytearray(size), pattern(comm.rank, size)
        sent = comm.Isend(data, dest=after, tag=size % 1000)
        comm.Recv(got, source=before, tag=size % 1000)
        sent.Wait()
        expect(f"message of {size} bytes", bytes(got), pattern(before, size))
    many = [comm.isend((comm.rank, number), dest=after, tag=7) for number in range(200)]
    for number in range(200):
        expect(f"message {number}", comm.recv(source=before, tag=7), (before, number))
    MPI.Request.waitall(many)


def collectives(comm):
    values = array.array("q", (comm.rank * 1000 + place for place in range(5000)))
    total = array.array("q", bytes(8 * 5000))
    comm.Allreduce(values, total, op=MPI.SUM)
    ranks = sum(range(comm.size)) * 1000
    expect("sum", list(total), [ranks + comm.size * place for place in range(5000)])
    parts = [pattern(comm.rank * 10 + peer, 3000 + peer) for peer in range(comm.size)]
    wanted = [pattern(peer * 10 + comm.rank, 3000 + comm.rank) for peer in range(comm.size)]
    expect("parts from everybody", comm.alltoall(parts), wanted)


def windows(comm):
    """Tests one-sided operations: put, get, and atomic sums."""
    room = 100_000
    window = MPI.Win.Allocate(room + 8, 1, comm=comm)
    memory = window.tomemory()
    memory[:] = bytes(room + 8)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    put = pattern(comm.rank, room)
    window.Fence()
    window.Put(put, after)
    window.Fence()
    expect("what was put", bytes(memory[:room]), pattern(before, room))
    got = bytearray(room)
    window.Fence()
    window.Get(got, after)
    window.Fence()
    expect("what was got", bytes(got), pattern(comm.rank, room))
    one, old = array.array("q", [1]), array.array("q", [0])
    for _ in range(20):
        window.Lock(0)
        window.Fetch_and_op([one, MPI.INT64_T], [old, MPI.INT64_T], 0, room)
        window.Unlock(0)
    comm.Barrier()
    if comm.rank == 0:
        window.Lock(0)
        count = int.from_bytes(bytes(memory[room:]), sys.byteorder)
        window.Unlock(0)
        expect("sum of atomics", count, 20 * comm.size)
    window.Free()


comm = MPI.COMM_WORLD
messages(comm)
collectives(comm)
windows(comm)
comm.Barrier()
if comm.rank == 0:
    library = MPI.Get_library_version().splitlines()[0]
    print(f"{comm.size} ranks have compared everything; {library}", flush=True)
