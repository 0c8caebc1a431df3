"""Runs a script in a fork of the interpreter at a socket: `warm_call.py SOCKET SCRIPT [ARGUMENT...]`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path


def main() -> int:
    path, *arguments = sys.argv[1:]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    folder = str(Path.cwd())
    job = json.dumps({"arguments": arguments, "environment": dict(os.environ), "folder": folder}).encode()
    socket.send_fds(connection, [len(job).to_bytes(8)], [0, 1, 2])
    connection.sendall(job)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: connection.sendall(b"T"))
    ended = connection.recv(1)
    return ended[0] if ended else 1


if __name__ == "__main__":
    sys.exit(main())
