"""A file store with as much of the S3 and Hugging Face Hub protocols as their clients need."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

SHA = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def store(files: dict[str, bytes], *, broken: frozenset[str] = frozenset()) -> Iterator[str]:
    """Serve `files` by path (`bucket/key`, or a file of the hub's dataset) and yield the base URL.

    Of the files in `broken` only the first half is sent, although Content-Length announces the whole file.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(head=True)

        def do_GET(self) -> None:
            self._answer(head=False)

        def _answer(self, *, head: bool) -> None:
            address = urlsplit(self.path)
            path = unquote(address.path).lstrip("/")
            query = parse_qs(address.query)
            if path.startswith("api/datasets/"):
                names = [{"rfilename": name, "type": "file", "path": name, "oid": "0", "size": 1} for name in files]
                body = orjson.dumps(names if "/tree/" in path else {"id": "a/b", "sha": SHA, "siblings": names})
                return self._send(200, body, head)
            if "list-type" in query:
                folders = "delimiter" in query
                listing = _listing(path.strip("/"), query.get("prefix", [""])[0], files, folders=folders)
                return self._send(200, listing, head)
            name = path.partition(f"/resolve/{SHA}/")[2] or path
            if name not in files:
                return self._send(404, b"", head)
            return self._send(200, files[name], head, half=name in broken)

        def _send(self, status: int, body: bytes, head: bool, *, half: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", SHA)
            self.send_header("Last-Modified", "Sat, 21 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if not head:
                self.wfile.write(body[: len(body) // 2] if half else body)
            if half:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listing(bucket: str, prefix: str, files: dict[str, bytes], *, folders: bool) -> bytes:
    """All keys, or with `folders` only the keys and folders directly below `prefix`."""
    keys = [name.removeprefix(f"{bucket}/") for name in files if name.startswith(f"{bucket}/{prefix}")]
    below = {prefix + key.removeprefix(prefix).partition("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]}
    if folders:
        keys = [key for key in keys if "/" not in key[len(prefix) :]]
    entries = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    if folders:
        entries += "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(below))
    return f'<?xml version="1.0"?><ListBucketResult><Name>{bucket}</Name>{entries}</ListBucketResult>'.encode()
