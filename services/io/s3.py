"""S3: what stands at an address. Needs the extra `aws`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

from rollyard.services.errors import OperatorError
from rollyard.services.io.optional import load

SCHEME = "s3://"


def read_text(place: str) -> str:
    """The text at a path or an s3:// address. Raises OperatorError saying why it cannot be read."""
    try:
        data = _object(place) if place.startswith(SCHEME) else Path(place).read_bytes()
        return data.decode("utf-8-sig")
    except OperatorError:
        raise
    except OSError as error:
        raise OperatorError(f"{place} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise OperatorError(f"{place} is no text: {error}") from error


def split(address: str) -> tuple[str, str]:
    """Bucket and key of `s3://bucket/key`. Raises OperatorError when it is not of that form."""
    bucket, _, key = address.removeprefix(SCHEME).partition("/")
    if not address.startswith(SCHEME) or not bucket or not key:
        raise OperatorError(f"{address!r} names nothing in S3; expected s3://bucket/key")
    return bucket, key


def client(wanted_for: str) -> Any:
    """boto3's client. Raises OperatorError when boto3 is not installed, as `extras.require` does."""
    return load("boto3", "aws", wanted_for).client("s3")


class Target(Protocol):
    """Where a copy goes."""

    def open(self, mode: Literal["wb"], /) -> BinaryIO:
        """From the first byte on."""
        ...


def fetch(address: str, target: Target) -> None:
    """Copy the object at an address. Raises OperatorError saying why it cannot be read."""
    bucket, key = split(address)
    with _told(address), target.open("wb") as file:
        client(address).download_fileobj(bucket, key, file)


def _object(address: str) -> bytes:
    bucket, key = split(address)
    with _told(address):
        data: bytes = client(address).get_object(Bucket=bucket, Key=key)["Body"].read()
    return data


@contextmanager
def _told(address: str) -> Iterator[None]:
    try:
        yield
    except OperatorError:
        raise
    except Exception as error:  # botocore makes its error classes at run time
        known = "credentials" in str(error)
        hint = "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" if known else ""
        raise OperatorError(f"{address} cannot be read: {error}{hint}") from error
