"""Tests with which clusters a client authenticates itself; real clusters are in tests/external/ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.services.http.ray_address import ray_authentication

WITH_TOKEN = {"RAY_AUTH_TOKEN": "t"}


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "localhost:6379", "[::1]:6379"])
def test_a_token_is_sent_to_clusters_of_this_host(address: str | None) -> None:
    if address == "[::1]:6379" and not Path("/proc/net/if_inet6").is_file():
        pytest.skip("no IPv6 on this host")
    assert ray_authentication(address, WITH_TOKEN) == {"RAY_AUTH_MODE": "token"}


def test_a_token_is_not_sent_to_another_host() -> None:
    assert ray_authentication("203.0.113.7:6379", WITH_TOKEN) == {}


def test_the_mode_that_the_user_sets_stays() -> None:
    assert ray_authentication(None, {**WITH_TOKEN, "RAY_AUTH_MODE": "disabled"}) == {}


def test_the_token_file_of_the_home_folder_counts(tmp_path: Path) -> None:
    assert ray_authentication(None, {"HOME": str(tmp_path)}) == {}
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t")
    assert ray_authentication(None, {"HOME": str(tmp_path)}) == {"RAY_AUTH_MODE": "token"}
