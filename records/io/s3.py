"""Reads and downloads objects from S3. Needs the `aws` extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from rollyard.records.errors import OperatorError
from rollyard.records.io.aws import AwsAccess, AwsError, aws_errors

SCHEME = "s3://"


def read_text(address: str) -> str:
    """Return the text of a local file or an S3 object. Raises OperatorError if it cannot be read."""
    try:
        data = _object(address) if address.startswith(SCHEME) else Path(address).read_bytes()
        return data.decode("utf-8-sig")
    except OperatorError:
        raise
    except OSError as error:
        raise OperatorError(f"{address} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OperatorError(f"{address} is not UTF-8 text: {error}") from error


def split(address: str) -> tuple[str, str]:
    """Return the bucket and key of `s3://bucket/key`. Raises OperatorError for any other format."""
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not address.startswith(SCHEME) or not bucket or not key:
        raise OperatorError(f"{address!r} is not an S3 URL; expected s3://bucket/key")
    return bucket, key


def client(feature: str, access: AwsAccess | None = None) -> Any:
    """Return boto3's S3 client. Raises OperatorError, with the `feature` that needs it, if boto3 is not installed."""
    return (access or AwsAccess()).client("s3", feature)


class Target(Protocol):
    """The destination of a download, such as a Path."""

    def open(self, mode: Literal["wb"], /) -> BinaryIO:
        """Open the file for writing, at its first byte."""
        ...


def fetch(address: str, target: Target) -> None:
    """Download an S3 object to `target`. Raises OperatorError if it cannot be read."""
    bucket, key = split(address)
    with _operator_errors(address), target.open("wb") as file:
        client(address).download_fileobj(bucket, key, file)


def _object(address: str) -> bytes:
    bucket, key = split(address)
    with _operator_errors(address):
        data: bytes = client(address).get_object(Bucket=bucket, Key=key)["Body"].read()
    return data


@contextmanager
def _operator_errors(address: str) -> Iterator[None]:
    """An address that cannot be read is a mistake on the command line or in a config."""
    try:
        with aws_errors(f"{address} cannot be read"):
            yield
    except AwsError as error:
        message = str(error).replace(f"{address} cannot use AWS", f"{address} cannot be read", 1)
        raise OperatorError(message) from error
