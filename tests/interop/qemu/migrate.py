"""Migrates a guest from one QEMU to another by RDMA, and compares its memory.

usage: migrate.py DIRECTORY ADDRESS PORT
The guest has no operating system: both QEMUs keep its CPU stopped, and the source loads memory from a file.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import time

directory, address, port = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
LIMIT_S = 60
START, SIZE = 16 << 20, 8 << 20


class Machine:
    """A QEMU with a stopped CPU, and its monitor."""

    def __init__(self, name, *options):
        self.name = name
        monitor = directory / f"{name}.monitor"
        words = ["qemu-system-x86_64", "-machine", "pc,accel=tcg", "-m", "64", "-S", "-nodefaults"]
        words += ["-display", "none", "-qmp", f"unix:{monitor},server=on,wait=off", *options]
        self.process = subprocess.Popen(words)
        self.stream = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                self.stream.connect(str(monitor))
                break
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    sys.exit(f"{name} does not come up")
                time.sleep(0.02)
        self.lines = self.stream.makefile()
        self.lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        self.stream.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            answer = json.loads(self.lines.readline())
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                sys.exit(f"{self.name}: {command}: {answer['error']['desc']}")

    def memory(self):
        file = directory / f"{self.name}.memory"
        self.ask("pmemsave", val=START, size=SIZE, filename=str(file))
        return file.read_bytes()

    def end(self):
        self.ask("quit")
        self.process.wait(LIMIT_S)


contents = os.urandom(SIZE)
(directory / "contents").write_bytes(contents)
loader = f"loader,file={directory / 'contents'},addr={START:#x},force-raw=on"
target = Machine("target", "-incoming", f"rdma:{address}:{port}")
source = Machine("source", "-device", loader)
if source.memory() != contents or target.memory() == contents:
    sys.exit("the guest's memory is not as it should be before")
source.ask("migrate", uri=f"rdma:{address}:{port}")
deadline = time.monotonic() + LIMIT_S
while True:
    state = source.ask("query-migrate")
    if state.get("status") == "completed":
        break
    if state.get("status") in ("failed", "cancelled") or time.monotonic() > deadline:
        sys.exit(f"not migrated: {state}")
    time.sleep(0.02)
while target.ask("query-status")["status"] == "inmigrate":
    if time.monotonic() > deadline:
        sys.exit("the target still waits")
    time.sleep(0.02)
if target.memory() != contents:
    sys.exit("the guest's memory has changed")
moved = state["ram"]["transferred"]
source.end()
target.end()
print(f"migrated, memory compared; {moved} bytes moved", flush=True)
