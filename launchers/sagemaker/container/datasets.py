"""Copies data sets and order files that a config names by an S3 address to this host."""

from __future__ import annotations

from collections.abc import Callable

from rollyard.launchers.sagemaker.container.s3_cache import S3Cache
from rollyard.records.errors import OperatorError
from rollyard.records.io import s3


class Datasets:
    """Resolves the addresses of data."""

    def __init__(self, cache: S3Cache, print_line: Callable[[str], None]) -> None:
        self._cache = cache
        self._print = print_line

    def resolve(self, address: str) -> str:
        """Return the local copy of `s3://bucket/key`, an object or a folder; other values unchanged.

        Raises OperatorError if there is no such object, AwsError if S3 cannot be read.
        """
        if not address.startswith(s3.SCHEME):
            return address
        copy = self._cache.get(address)
        if copy is None:
            raise OperatorError(f"{address} does not exist in S3. Upload the data before the job is submitted")
        self._print(f"data {address}: {copy}")
        return str(copy)
