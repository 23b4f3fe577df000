"""Hands the connections of one socket on to another: how a server in a network of its own is reached.

Run inside that network: `relay.py PATH PORT COMMAND...` starts the command, and gives what comes to the socket at PATH
to PORT of the loopback interface, until the command ends. Also imported by the fixture, for the other end.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

CHUNK_BYTES = 65536


def serve_relay(listener: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """Relay every connection until the listener is closed."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_relay, args=(near, connect), daemon=True).start()


def _relay(near: socket.socket, connect: Callable[[], socket.socket]) -> None:
    """One connection, in both directions, until either end is through."""
    with near, contextlib.suppress(OSError), connect() as far:
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def main(arguments: list[str]) -> int:
    """Run the command in this network, reachable at PATH."""
    path, port, *command = arguments
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    process = subprocess.Popen(command)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    threading.Thread(
        target=serve_relay, args=(listener, lambda: socket.create_connection(("127.0.0.1", int(port)))), daemon=True
    ).start()
    try:
        return process.wait()
    finally:
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
