"""S3Cache: local copies of objects and prefixes in S3, complete or absent, even after a crash."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import orjson

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.io import s3
from rollyard.records.io.aws import AwsError, aws_errors
from rollyard.records.io.locked_files import sync_folder, write_synced
from rollyard.records.types import Record

_MD5 = re.compile(r"[0-9a-f]{32}")
_MANIFEST = "manifest.json"


class S3Object(Record):
    """An object of a prefix."""

    name: str
    """Its key below the prefix; empty for an object that is itself the address."""
    size: int
    etag: str


class Manifest(Record):
    """What a copy contains. It is written before the copy gets its name."""

    address: str
    objects: tuple[S3Object, ...]


class S3Cache:
    """Copies in one folder. Several processes of a host may use it."""

    def __init__(self, folder: Path, client: Any) -> None:
        self._folder = folder
        self._client = client

    def get(self, address: str) -> Path | None:
        """Return the local copy of an object or of all objects below a prefix; None if there is nothing.

        A copy is used again if S3 still lists the same objects. Raises AwsError if S3 cannot be read, RunError if a
        copy is damaged in transfer, OSError if it cannot be written.
        """
        address = address.rstrip("/")
        bucket, key = s3.split(address)
        manifest = Manifest(address=address, objects=tuple(self._list(address, bucket, key)))
        if not manifest.objects:
            return None
        entry = self._folder / hashlib.sha256(address.encode()).hexdigest()[:16]
        content = entry / PurePosixPath(key).name
        self._folder.mkdir(parents=True, exist_ok=True)
        with _locked(entry.with_suffix(".lock")):
            if not _is_copy(entry, content, manifest):
                partial = entry.with_suffix(".partial")
                for leftover in (partial, entry):
                    shutil.rmtree(leftover, ignore_errors=True)
                self._copy(bucket, key, manifest, partial)
                partial.rename(entry)
                sync_folder(self._folder)
        return content

    def _copy(self, bucket: str, key: str, manifest: Manifest, partial: Path) -> None:
        content = partial / PurePosixPath(key).name
        for item in manifest.objects:
            target = content / item.name if item.name else content
            target.parent.mkdir(parents=True, exist_ok=True)
            with aws_errors(f"{manifest.address} cannot be copied"):
                self._client.download_file(bucket, f"{key}/{item.name}" if item.name else key, str(target))
            self._check(target, item, manifest.address, bucket, f"{key}/{item.name}" if item.name else key)
        write_synced(partial / _MANIFEST, orjson.dumps(manifest.model_dump()))

    def _check(self, file: Path, item: S3Object, address: str, bucket: str, key: str) -> None:
        """Compare the size and, where S3 states it, the MD5 sum."""
        size = file.stat().st_size
        if size != item.size:
            raise RunError(
                f"{address}: {item.name} has {size:,} bytes, expected {item.size:,}; it changed during the copy"
            )
        if not _MD5.fullmatch(item.etag):  # an object in several parts
            return
        with file.open("rb") as opened:
            found = hashlib.file_digest(opened, "md5").hexdigest()
        if found != item.etag and not self._is_encrypted_by_key(address, bucket, key):
            raise RunError(
                f"{address}: {item.name} has the MD5 sum {found}, expected {item.etag}; it changed or was damaged"
            )

    def _is_encrypted_by_key(self, address: str, bucket: str, key: str) -> bool:
        """Return whether S3 encrypts the object with a key of KMS. Its ETag looks like an MD5 sum then, but is none."""
        with aws_errors(f"{address} cannot be read"):
            head = self._client.head_object(Bucket=bucket, Key=key)
        return str(head.get("ServerSideEncryption", "")).startswith("aws:kms")

    def _list(self, address: str, bucket: str, key: str) -> Iterator[S3Object]:
        prefix = f"{key}/"
        found = False
        with aws_errors(f"{address} cannot be read"):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for item in (item for page in pages for item in page.get("Contents", ())):
                name = item["Key"].removeprefix(prefix)
                if not name or name.endswith("/"):  # the placeholder of a folder
                    continue
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise OperatorError(f"s3://{bucket}/{item['Key']} is not a valid file name: rename the object")
                found = True
                yield S3Object(name=name, size=item["Size"], etag=item["ETag"].strip('"'))
        if found:
            return
        try:
            with aws_errors(f"{address} cannot be read"):
                head = self._client.head_object(Bucket=bucket, Key=key)
        except AwsError as error:
            if error.status == 404:
                return
            raise
        yield S3Object(name="", size=head["ContentLength"], etag=head["ETag"].strip('"'))


def _is_copy(entry: Path, content: Path, manifest: Manifest) -> bool:
    try:
        stored = Manifest.model_validate_json((entry / _MANIFEST).read_bytes())
        sizes = {item.name: (content / item.name if item.name else content).stat().st_size for item in stored.objects}
    except (OSError, ValueError):
        return False
    return stored == manifest and all(sizes[item.name] == item.size for item in manifest.objects)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Wait until no other process uses the same copy. The lock ends with the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
