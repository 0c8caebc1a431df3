"""S3: what stands at an address. Needs the extra `aws`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from services.errors import OperatorError

SCHEME = "s3://"


def read_text(place: str) -> str:
    """The text at a path or an s3:// address. Raises OperatorError saying why it cannot be read."""
    try:
        data = _object(place) if place.startswith(SCHEME) else Path(place).read_bytes()
        return data.decode()
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
    """boto3's client. Raises OperatorError when boto3 is not installed, naming what it was wanted for."""
    try:
        boto3: Any = importlib.import_module("boto3")
    except ImportError as error:
        raise OperatorError(f"{wanted_for} needs boto3: pip install 'rollyard[aws]'") from error
    return boto3.client("s3")


def _object(address: str) -> bytes:
    bucket, key = split(address)
    s3 = client(address)
    try:
        data: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except Exception as error:  # botocore makes its error classes at run time
        raise OperatorError(f"{address} cannot be read: {error}") from error
    return data
