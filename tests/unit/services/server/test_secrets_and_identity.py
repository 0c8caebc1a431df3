from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.records.types import Json
from rollyard.services.server.settings import without_secrets
from tests.support.fixtures import load_text, make_folder, server_yaml

SECRET = "sk-1234-do-not-show"
OWN = f"{{api_key: {SECRET}, speed: 3}}"


def test_a_secret_setting_is_redacted_and_the_others_are_not(tmp_path: Path) -> None:
    shown = orjson.dumps(load_text(tmp_path, server_yaml(make_folder(tmp_path), OWN)).redacted()).decode()
    assert SECRET not in shown and '"speed":3' in shown


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", OWN),
        ("", "{api_key: '${MY_ROUTER}'}"),
        (f"policy_api_key: {SECRET}\n", "{title: 'Bearer ${policy_api_key}'}"),
        (f"token: {{value: {SECRET}}}\n", "{}"),
    ],
    ids=["a setting", "a variable", "a copy in another value", "below a secret name"],
)
def test_no_secret_of_a_config_is_in_what_is_shown_or_stored(tmp_path: Path, text: str, settings: str) -> None:
    config = load_text(tmp_path, text + server_yaml(make_folder(tmp_path), settings), environ={"MY_ROUTER": SECRET})
    stored = orjson.dumps([config.redacted(), config.identity()]).decode()
    assert SECRET not in stored
    (spec,) = config.servers
    assert "{api_key" not in settings or SECRET not in f"{config!r} {spec.settings!r} {spec.settings}"


def identity(root: Path, mine: str, settings: str = "{}") -> Json:
    return load_text(root, server_yaml(mine, settings)).identity()


def test_the_identity_changes_with_a_setting_and_the_implementation(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    assert identity(tmp_path, mine, "{speed: 2}") != identity(tmp_path, mine, "{speed: 3}")
    assert identity(tmp_path, mine, "{engine: {threads: 2}}") != identity(tmp_path, mine, "{engine: {threads: 3}}")
    assert identity(tmp_path, mine) != identity(tmp_path, make_folder(tmp_path))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("{base_url: 'http://a'}", "{base_url: 'http://b'}"),
        ("{base_url: 'http://a'}", "{}"),
        ("{port: 7001}", "{port: 7002}"),
        ("{host: 127.0.0.1}", "{host: 127.0.0.2}"),
        ("{replicas: 1}", "{replicas: 3}"),
        ("{replicas: 1}", "{replicas: auto}"),
        ("{api_key: a}", "{api_key: b}"),
        ("{api_key: a}", "{}"),
        ("{description: a}", "{description: b}"),
        ("{speed: 2}", "{speed: '2'}"),
    ],
)
def test_the_identity_does_not_change_with_settings_that_do_not_affect_rollouts(
    tmp_path: Path, first: str, second: str
) -> None:
    mine = make_folder(tmp_path)
    assert identity(tmp_path, mine, first) == identity(tmp_path, mine, second)


def test_the_identity_does_not_change_with_the_order_of_settings_or_servers(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    first, second = server_yaml(mine, "{speed: 2, title: a}"), server_yaml(mine, "{title: a, speed: 2}")
    extra = server_yaml(mine, name="other")
    assert load_text(tmp_path, first + extra).identity() == load_text(tmp_path, extra + second).identity()


HIDDEN = [
    {"default_headers": {"Authorization": f"Bearer {SECRET}"}},
    {"default_headers": {"x-api-key": SECRET}},
    {"default_headers": {"api-key": SECRET}},
    {"default_headers": {"Cookie": f"a=1; session={SECRET}"}},
    {"default_headers": {"Proxy-Authorization": f"Basic {SECRET}"}},
    {"default_headers": {"X-Whatever": SECRET}},
    {"extra_headers": [f"Authorization: Bearer {SECRET}", ["x-tenant", SECRET]]},
    {"openai_default_headers": [{"name": "x-org", "value": SECRET}]},
    {"url": f"https://me:{SECRET}@host/v1"},
    {"url": f"https://{SECRET}@host/v1"},
    {"urls": [f"https://host/v1?api_key={SECRET}&n=1", f"https://host/v1?n=1&sig={SECRET}"]},
    {"url": f"https://host/v1?X-Amz-Signature={SECRET}"},
    {"url": f"https://host/v1?token={SECRET}#part"},
    {"env": {"HF_TOKEN": SECRET, "WANDB_API_KEY": SECRET}},
    {"env": [f"HF_TOKEN={SECRET}", {"name": "AWS_SECRET_ACCESS_KEY", "value": SECRET}]},
    {"extra_flags": ["--hf-token", SECRET, f"--api-key={SECRET}"]},
    {"extra_flags": ["--headers", '{"Authorization": "Bearer ' + SECRET + '"}']},
    {"engine": {"apiKey": SECRET, "deep": [{"client_secret": SECRET}]}},
    {"command": f"curl -H 'Authorization: Bearer {SECRET}' http://host"},
    {"api_keys": [SECRET, SECRET]},
    {"environment": {"PGPASSWORD": SECRET, "SLACK_WEBHOOK_URL": SECRET}},
    {"command": f"vllm serve --api-key {SECRET} --port 1"},
    {"env": [{"Name": "HF_TOKEN", "Value": SECRET}]},
    {"header": {"X-Whatever": SECRET}},
    {"command": f"curl -u me:{SECRET} http://host"},
    {"auth": SECRET, "basic_auth": ["me", SECRET], "jwt": SECRET, "db_pass": SECRET, "aws_access_key_id": SECRET},
    {"settings": f"port: 1\napi_key: {SECRET}\n", "toml": f'api_key = "{SECRET}"'},
    {"note": "the key is hf_" + "a1" * 17, "key": SECRET},
    {"note": f"--auth={SECRET} 1-token={SECRET} ---x-1-pwd={SECRET} -2-auth={SECRET}"},
]


@pytest.mark.parametrize("tree", HIDDEN, ids=str)
def test_whatever_can_carry_a_key_is_masked(tree: Json) -> None:
    shown = orjson.dumps(without_secrets(tree)).decode()
    assert SECRET not in shown and "***" in shown


@pytest.mark.parametrize(
    "tree",
    [
        {"default_headers": {"Accept": "text/event-stream", "Content-Type": "application/json", "User-Agent": "me"}},
        {"base_url": "http://host:8000/v1?api-version=2", "model": "org/token-model", "max_tokens": 5},
        {"system_prompt": "The key: think. Basic arithmetic; mail me@host. Bearer of bad news = none."},
        {"extra_flags": ["--max-model-len", "4096", "--tokenizer", "x"], "env": {"HF_HOME": "/x"}},
        {"api_key": "", "token": None},
        {"key": "dataset_key", "title": "the dataset_key of a split", "auth": False},
        {"input_key": "problem", "label_key": "answer_text", "sort_key": "a", "url": "http://host?sort_key=x"},
        {"eos_token": "<|im_end|>", "pad_token": "</s>", "text": "<|im_end|>", "flags": ["--eos-token", "</s>"]},
    ],
    ids=str,
)
def test_what_carries_no_key_is_shown_as_it_is(tree: Json) -> None:
    assert without_secrets(tree) == tree


def test_the_search_for_keys_ends_in_a_text_with_as_many_hyphens_as_letters() -> None:
    text = "a-" * 200_000  # half an hour, if each part of a name were read as a name of its own
    assert without_secrets({"title": text}) == {"title": text}


def test_a_short_key_is_masked_as_a_value_and_mangles_no_other_text() -> None:
    assert without_secrets({"api_key": "a", "title": "a banana"}) == {"api_key": "***", "title": "a banana"}
