"""Which URLs an entry of the allow-list allows."""

from __future__ import annotations

import pytest

from rollyard.agents.base import AgentSettings, AllowedUrl, parsed_url
from rollyard.records.errors import OperatorError
from rollyard.services.server.settings import parse_settings

REFS = {"resources_server": {"name": "e"}, "model_server": {"name": "m"}}


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("http://trainer:30000/sessions", "http://trainer:30000/sessions/7/v1", True),
        ("http://trainer:30000/sessions/", "http://trainer:30000/sessions", True),
        ("http://trainer:30000/sessions", "http://trainer:30000/sessions2/7", False),
        ("http://trainer:30000/sessions", "http://trainer:30000/", False),
        ("http://trainer:30000", "https://trainer:30000/v1", False),
        ("http://trainer", "http://trainer:80/v1", True),
        ("https://trainer", "https://trainer/v1", True),
        ("http://trainer", "http://trainer:8080/v1", False),
        ("trainer", "http://trainer:8080/v1", True),
        ("trainer", "https://TRAINER./v1", True),
        ("trainer:8080", "http://trainer:8080/v1", True),
        ("trainer:8080", "http://trainer:8081/v1", False),
        ("trainer", "http://trainer.evil/v1", False),
        ("trainer", "http://eviltrainer/v1", False),
        ("*.cluster", "http://a.b.cluster/v1", True),
        ("*.cluster", "http://cluster/v1", False),
        ("*.cluster", "http://evilcluster/v1", False),
        ("127.0.0.1", "http://127.0.0.1:9/v1", True),
        ("[::1]:9", "http://[::1]:9/v1", True),
    ],
)
def test_an_entry_allows_a_host_or_a_url_prefix(entry: str, url: str, allowed: bool) -> None:
    assert AllowedUrl.parse(entry).allows(parsed_url(url)) is allowed


@pytest.mark.parametrize(
    "url",
    [
        "http://trainer@evil/v1",
        "http://user:pass@trainer/v1",
        "http://trainer/../v1",
        "http://trainer/a/%2e%2e/b",
        "http://trainer/a/%2E./b",
        "http://trainer/a%2fb",
        "http://trainer\\@evil/v1",
        "http://trainer/a\\..\\b",
        "http://trainer/v1?a=1",
        "http://trainer/v1#a",
        "http://tra iner/v1",
        "http://trainer\n.evil/v1",
        "http://tr\u0430iner/v1",
        "ftp://trainer/v1",
        "file:///etc/passwd",
        "//trainer/v1",
        "trainer/v1",
        "http:///v1",
        "http://trainer:99999/v1",
        "http://trainer:x/v1",
        "http://trainer:0/v1",
        "http://trainer//sessions/7",
        "",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed_url(url)


@pytest.mark.parametrize("entry", ["", "a b/c", "http://", "trainer/path", "user@trainer", "http://a/../b"])
def test_an_invalid_entry_stops_the_start_with_one_line(entry: str) -> None:
    with pytest.raises(OperatorError, match="policy_base_url_allowlist"):
        parse_settings(AgentSettings, {**REFS, "policy_base_url_allowlist": [entry]}, "agent")


def test_an_allowlist_requires_a_run_token_at_the_start() -> None:
    listed = parse_settings(AgentSettings, {**REFS, "policy_base_url_allowlist": "trainer"}, "agent")
    assert "policy_base_url_allowlist" in listed.token_needed_for
    assert parse_settings(AgentSettings, REFS, "agent").token_needed_for == ""
