"""Order files at s3:// by real boto3: what cannot be asked for is the operator's to mend, and told in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.services.errors import OperatorError
from rollyard.services.io.s3 import read_text
from tests.support.fake_stores import store

PLACE = "s3://bucket/orders/a.txt"


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    # It keeps the credentials that another test had.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)


def test_without_credentials_it_is_said_where_they_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OperatorError, match="set AWS_ACCESS_KEY_ID"):
        read_text(PLACE)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(OperatorError, match=r"s3://bucket/orders/a\.txt cannot be read: .*nobody"):
        read_text(PLACE)


def test_an_endpoint_that_is_down_or_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    with store({}) as url:
        pass
    for address, words in ((url, "connect"), ("nonsense", "nonsense")):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        with pytest.raises(OperatorError, match=rf"s3://bucket/orders/a\.txt cannot be read: .*{words}"):
            read_text(PLACE)
