"""Uploads files to S3, large ones in parts that another process can continue after a crash."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rollyard.records.io.aws import AwsError, aws_errors

PART_BYTES = 64 * 1024 * 1024
"""Smaller files are uploaded by one request."""
MAX_PARTS = 9_000
"""S3 accepts 10,000."""


class S3Uploader:
    """Uploads files to one bucket."""

    def __init__(self, client: Any, bucket: str, part_bytes: int = PART_BYTES) -> None:
        self._client = client
        self._bucket = bucket
        self._part_bytes = part_bytes

    def upload(self, file: Path, key: str, length: int | None = None) -> None:
        """Upload a file, or its first `length` bytes. S3 shows the object only when it is complete.

        Raises AwsError if S3 refuses it, OSError if the file cannot be read.
        """
        with file.open("rb") as opened:
            size = file.stat().st_size if length is None else length
            with aws_errors(f"s3://{self._bucket}/{key} cannot be uploaded"):
                if size <= self._part_bytes:
                    self._client.put_object(Bucket=self._bucket, Key=key, Body=opened.read(size))
                else:
                    self._upload_parts(opened, key, size)

    def put(self, data: bytes, key: str) -> None:
        with aws_errors(f"s3://{self._bucket}/{key} cannot be uploaded"):
            self._client.put_object(Bucket=self._bucket, Key=key, Body=data)

    def delete(self, key: str) -> None:
        with aws_errors(f"s3://{self._bucket}/{key} cannot be deleted"):
            self._client.delete_object(Bucket=self._bucket, Key=key)

    def has(self, file: Path, key: str) -> bool:
        """Return whether the object has exactly the file's content, by S3's checksum."""
        head = self.head(key)
        if head is None or head["ContentLength"] != (size := file.stat().st_size):
            return False
        with file.open("rb") as opened:
            if size <= self._part_bytes:
                etag = hashlib.file_digest(opened, "md5").hexdigest()
            else:
                sums = [hashlib.md5(part).digest() for part in _parts(opened, size, self._part_size(size))]
                etag = f"{hashlib.md5(b''.join(sums)).hexdigest()}-{len(sums)}"
        return str(head["ETag"]).strip('"') == etag

    def head(self, key: str) -> dict[str, Any] | None:
        """Return the properties of an object; None if it does not exist."""
        try:
            with aws_errors(f"s3://{self._bucket}/{key} cannot be read"):
                found: dict[str, Any] = self._client.head_object(Bucket=self._bucket, Key=key)
        except AwsError as error:
            if error.status == 404:
                return None
            raise
        return found

    def read(self, key: str) -> bytes:
        with aws_errors(f"s3://{self._bucket}/{key} cannot be read"):
            data: bytes = self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()
        return data

    def _upload_parts(self, opened: BinaryIO, key: str, size: int) -> None:
        target = {"Bucket": self._bucket, "Key": key}
        unfinished = self._unfinished(key)
        upload = unfinished[-1] if unfinished else self._client.create_multipart_upload(**target)["UploadId"]
        stored = self._stored_parts(key, upload) if unfinished else {}
        done = []
        for number, part in enumerate(_parts(opened, size, self._part_size(size)), start=1):
            etag = f'"{hashlib.md5(part).hexdigest()}"'
            if stored.get(number) != etag:
                etag = self._client.upload_part(**target, UploadId=upload, PartNumber=number, Body=part)["ETag"]
            done.append({"PartNumber": number, "ETag": etag})
        self._client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": done})
        for other in unfinished[:-1]:  # unfinished uploads cost as much as objects
            self._client.abort_multipart_upload(**target, UploadId=other)

    def _unfinished(self, key: str) -> list[str]:
        """Return the ids of interrupted uploads of a key, oldest first."""
        pages = self._client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=key)
        found = [item for page in pages for item in page.get("Uploads", ()) if item["Key"] == key]
        return [item["UploadId"] for item in sorted(found, key=lambda item: str(item.get("Initiated", "")))]

    def _stored_parts(self, key: str, upload: str) -> dict[int, str]:
        pages = self._client.get_paginator("list_parts").paginate(Bucket=self._bucket, Key=key, UploadId=upload)
        return {part["PartNumber"]: part["ETag"] for page in pages for part in page.get("Parts", ())}

    def _part_size(self, size: int) -> int:
        return max(self._part_bytes, -(-size // MAX_PARTS))


def _parts(opened: BinaryIO, size: int, part_size: int) -> Iterator[bytes]:
    while size > 0:
        part = opened.read(min(part_size, size))
        if not part:
            raise OSError(None, "the file became shorter while it was uploaded", getattr(opened, "name", None))
        size -= len(part)
        yield part
