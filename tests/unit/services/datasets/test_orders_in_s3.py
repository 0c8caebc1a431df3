"""Order files at s3:// through real boto3: failures are operator errors of one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.s3 import read_text
from tests.support.fake_stores import store

ADDRESS = "s3://bucket/orders/a.txt"


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    # The default session caches the credentials of other tests.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)


def test_the_error_without_credentials_names_the_variables_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperatorError, match="set AWS_ACCESS_KEY_ID"):
        read_text(ADDRESS)
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    with pytest.raises(OperatorError, match=r"s3://bucket/orders/a\.txt cannot be read: .*no-such-profile"):
        read_text(ADDRESS)


def test_an_unreachable_or_invalid_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with store({}) as url:
        pass
    for endpoint, message in ((url, "connect"), ("nonsense", "nonsense")):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(OperatorError, match=rf"s3://bucket/orders/a\.txt cannot be read: .*{message}"):
            read_text(ADDRESS)
