"""Pings from a process of its own, while something else happens: how long do other clients wait?

    with Pings(server.port) as pings:
        ...
    pings.p99_ms, pings.longest_ms

A ping follows the other, one in each millisecond. If the server is deaf for longer, those count too that would have
been sent meanwhile: otherwise a second of deafness would be one slow ping among thousands.
"""

import json
import socket
import subprocess
import sys
import threading
import time

EVERY_SECONDS = 0.001


class Pings:
    """Pings a server until the end of its block."""

    def __init__(self, port):
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"
        self.count, self.p99_ms, self.longest_ms = 0, 0.0, 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        out, _ = self.process.communicate("\n")
        assert self.process.returncode == 0, "the server did not answer a ping"
        self.count, self.p99_ms, self.longest_ms = json.loads(out)


def with_missed(seconds):
    """The times that answers took, and those of the pings that could not be sent meanwhile."""
    every = []
    for took in seconds:
        while took > 0:
            every.append(took)
            took -= EVERY_SECONDS
    return sorted(every)


def main(port):
    """Pings until its input ends, and prints how many there were, the 99th percentile and the longest."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    is_over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(1), is_over.set()), daemon=True).start()
    print("ready", flush=True)
    seconds = []
    while not is_over.is_set() or not seconds:
        start = time.monotonic()
        connection.sendall(b"PING\r\n")
        answer = connection.recv(7)
        took = time.monotonic() - start
        assert answer == b"+PONG\r\n", answer
        seconds.append(took)
        time.sleep(max(0.0, EVERY_SECONDS - took))
    every = with_missed(seconds)
    print(json.dumps([len(seconds), every[len(every) * 99 // 100] * 1e3, every[-1] * 1e3]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
