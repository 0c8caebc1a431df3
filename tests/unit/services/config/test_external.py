from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.run_config import ServerSpec
from tests.support.foreign_folders import entry


def external(root: Path, settings: Json, family: str = "resources_servers", name: str = "mcqa") -> ServerSpec:
    (spec,) = load([{"mine": entry(family, name, **settings)}], [], [root, INSTALLED], {}).servers
    return spec


REFERENCES = {name: {"type": "resources_servers", "name": "mine"} for name in ("resources_server", "model_server")}
CATALOGUE = {"domain": "math", "verified": False, "license": "MIT", "allowed_agents": ["simple_agent"]}


@pytest.mark.parametrize(
    ("family", "settings", "url"),
    [
        ("resources_servers", {"host": "10.0.0.5", "port": 8080}, "http://10.0.0.5:8080"),
        ("responses_api_models", {"host": "10.0.0.5", "port": 8080}, "http://10.0.0.5:8080"),
        ("agents", {"host": "10.0.0.5", "port": 8080}, "http://10.0.0.5:8080"),
        ("responses_api_agents", {"host": "127.0.0.1", "port": 9, **REFERENCES}, "http://127.0.0.1:9"),
        ("resources_servers", {"url": "https://gym.example/mcqa/"}, "https://gym.example/mcqa"),
        ("resources_servers", {"url": "http://127.0.0.1:9", **CATALOGUE}, "http://127.0.0.1:9"),
        ("resources_servers", {"host": "::1", "port": 9}, "http://[::1]:9"),
        ("resources_servers", {"host": "[::1]", "port": 9}, "http://[::1]:9"),
    ],
)
def test_an_entry_of_any_family_may_name_a_server_by_its_address(
    tmp_path: Path, family: str, settings: Json, url: str
) -> None:
    spec = external(tmp_path, settings, family)
    assert spec.external_url == url and spec.is_foreign


@pytest.mark.parametrize(("family", "name"), [("resources_servers", "gsm8k"), ("responses_api_models", "vllm_model")])
def test_host_and_port_without_an_entrypoint_win_over_a_folder_of_rollyard_with_a_note(
    tmp_path: Path, family: str, name: str
) -> None:
    config = load([{"mine": entry(family, name, host="127.0.0.1", port=9)}], [], [tmp_path, INSTALLED], {})
    assert config.servers[0].external_url == "http://127.0.0.1:9"
    assert f"Rollyard's {name} " in config.notes[0] and "entrypoint: app.py" in config.notes[0]


@pytest.mark.parametrize(
    "settings", [{"host": "127.0.0.1", "port": 9, "entrypoint": "app.py"}, {"port": 9}, {"host": "0.0.0.0", "port": 9}]
)
def test_with_an_entrypoint_or_without_a_host_to_call_rollyards_own_server_listens_there(
    tmp_path: Path, settings: Json
) -> None:
    spec = external(tmp_path, settings, name="gsm8k")
    assert spec.external_url is None
    assert (spec.settings.host, spec.settings.port) == (settings.get("host", "127.0.0.1"), 9)


def test_a_setting_of_rollyards_server_is_refused_with_how_to_start_it_on_that_address(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"'equality'.* entrypoint: app\.py"):
        external(tmp_path, {"host": "127.0.0.1", "port": 9, "equality": "numbers"}, name="gsm8k")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"host": "127.0.0.1", "prot": 9}, "mine: .* url.* host"),
        ({"url": "http://127.0.0.1:9", "host": "127.0.0.1"}, "has url and host"),
        ({"port": 9}, "has port.* url.* host"),
        ({"url": "127.0.0.1:9"}, "mine.url is '127.0.0.1:9'.* URL"),
        ({"url": "http://a:b@127.0.0.1:9"}, "contains credentials"),
        ({"url": "http://127.0.0.1:9/?a=b"}, " base URL"),
        ({"url": "http://127.0.0.1:9/a b"}, " URL"),
        ({"host": "a/b", "port": 9}, "mine.host is 'a/b'"),
        ({"host": "user@a", "port": 9}, "host is 'user@a'"),
        ({"url": "http://127.0.0.1:9", "replicas": 2}, "replicas is 2"),
        ({"url": "http://127.0.0.1:9", "max_step": 2}, "unknown option 'max_step'"),
        ({"host": "127.0.0.1", "port": 99999}, "'port' is 99999"),
        ({"url": "http://127.0.0.1:9", "entrypoint": "app.py"}, "no folder resources_servers/mcqa"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused_with_one_line(
    tmp_path: Path, settings: Json, message: str
) -> None:
    with pytest.raises(OperatorError, match=message) as raised:
        external(tmp_path, settings)
    assert "\n" not in str(raised.value)
