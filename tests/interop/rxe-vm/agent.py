"""Client of the guest's agent (guest/agent.c), which runs commands for the host.

A connection carries one command: "RXV1", u32 0, u32 count, then count strings (u32 length, bytes): the
working directory and argv. After that frames (u8 type, u32 length, bytes) to the guest: 0 stdin data,
1 end of stdin, 2 signal number; from the guest: 1 stdout, 2 stderr, 3 exit status (i32). Little-endian.
"""
import ctypes, os, select, signal, socket, struct, sys, threading, time

CLONE_NEWNET = 0x40000000
libc = ctypes.CDLL(None, use_errno=True)


def enter_netns(ns):
    fd = os.open('/run/netns/' + ns, os.O_RDONLY)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), 'setns')
    os.close(fd)


def put(sock, kind, data=b''):
    sock.sendall(struct.pack('<BI', kind, len(data)) + data)


def recv_exactly(sock, n):
    got = b''
    while len(got) < n:
        chunk = sock.recv(n - len(got))
        if not chunk:
            raise EOFError
        got += chunk
    return got


def connect(ns, port):
    """Connects to the agent from inside the namespace, in a thread that enters it."""
    result = []

    def work():
        try:
            enter_netns(ns)
            s = socket.create_connection(('127.0.0.1', port), timeout=30)
            s.settimeout(None)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            result.append(s)
        except OSError as e:
            result.append(e)
    t = threading.Thread(target=work)
    t.start()
    t.join()
    if isinstance(result[0], OSError):
        raise result[0]
    return result[0]


def write_to(stream):
    def write(data):
        stream.buffer.write(data)
        stream.buffer.flush()
    return write


def run(ns, port, argv, out=None, err=None, timeout=None):
    """Runs argv in the guest; out and err take bytes. Returns the exit status, 124 after `timeout` seconds.

    Raises OSError or EOFError if the guest does not answer."""
    out, err = out or write_to(sys.stdout), err or write_to(sys.stderr)
    s = connect(ns, port)
    strings = [b'/root'] + [os.fsencode(a) for a in argv]
    s.sendall(b'RXV1' + struct.pack('<II', 0, len(strings)) +
              b''.join(struct.pack('<I', len(x)) + x for x in strings))
    put(s, 1)
    # One signal per expiry.
    stages = [signal.SIGTERM, signal.SIGKILL]
    end = time.monotonic() + timeout if timeout else None
    try:
        while True:
            if end is not None and not select.select([s], [], [], max(0, end - time.monotonic()))[0]:
                put(s, 2, bytes([stages.pop(0)]))
                end = time.monotonic() + 2 if stages else None
                continue
            kind, n = struct.unpack('<BI', recv_exactly(s, 5))
            data = recv_exactly(s, n)
            if kind == 1:
                out(data)
            elif kind == 2:
                err(data)
            elif kind == 3:
                return struct.unpack('<i', data)[0] if len(stages) == 2 else 124
    finally:
        s.close()


def output(ns, port, command, timeout=60):
    """Returns status and merged output of a shell command line."""
    got = []
    rc = run(ns, port, ['sh', '-c', command], out=got.append, err=got.append, timeout=timeout)
    return rc, b''.join(got).decode(errors='replace')
