"""Checks of an evaluation that need no process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.plan import EvalPlan, check, collect_command, run_command
from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError

ROWS = INSTALLED / "resources_servers/gsm8k/data/example.jsonl"


@contextmanager
def endpoint(status: int = 200, *models: str, body: str | None = None) -> Iterator[str]:
    """An endpoint that lists `models`; the key `right` is accepted."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            right = self.headers["authorization"] == "Bearer right"
            content = (body or json.dumps({"data": [{"id": name} for name in models]})).encode()
            self.send_response(status if right else 401)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


async def plan_of(folder: Path, environ: dict[str, str] | None = None, **keys: Any) -> EvalPlan:
    given = {"environments": ["gsm8k"], "input_jsonl_fpath": str(ROWS), "output_dir": folder / "out", **keys}
    return await check(EvalConfig.model_validate(given), environ or {}, folder)


async def refusal(folder: Path, **keys: Any) -> str:
    with pytest.raises(OperatorError) as raised:
        await plan_of(folder, **keys)
    return str(raised.value)


async def test_an_endpoint_must_serve_the_model_and_accept_the_key_which_no_command_line_shows(tmp_path: Path) -> None:
    with endpoint(200, "tiny", "other") as url:
        plan = await plan_of(tmp_path, model="tiny", policy_base_url=url, policy_api_key="right")
        assert (plan.expected, plan.agent, plan.notes) == (5, "gsm8k_agent", [])
        assert not [word for word in [*run_command(plan), *collect_command(plan, "h:1")] if "right" in word]
        from_environment = await plan_of(tmp_path, {"policy_api_key": "right"}, model="tiny", policy_base_url=url)
        assert from_environment.source.api_key == "right"
        error = await refusal(tmp_path, model="tiny1", policy_base_url=url, policy_api_key="right")
        assert "'tiny'" in error and ": tiny, other" in error
        error = await refusal(tmp_path, model="tiny", policy_base_url=url, policy_api_key="wrong key")
        assert "API key" in error and "wrong key" not in error


@pytest.mark.parametrize(("status", "body"), [(404, None), (200, "[]"), (200, "<html>"), (200, '{"data": 7}')])
async def test_an_endpoint_without_a_list_of_models_is_used_with_a_note(
    tmp_path: Path, status: int, body: str | None
) -> None:
    with endpoint(status, body=body) as url:
        plan = await plan_of(tmp_path, model="tiny", policy_base_url=url, policy_api_key="right")
    assert "not checked" in plan.notes[0]


async def test_a_secret_among_the_overrides_is_refused(tmp_path: Path) -> None:
    key = "policy_model.responses_api_models.builtin_model.api_key"
    assert "${oc.env:NAME}" in await refusal(tmp_path, model="builtin", overrides=[f"+{key}=s3cret"])


async def test_a_port_for_vllm_that_another_program_uses_is_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "vllm").touch(0o755)
    with endpoint() as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        given = {"command": [str(tmp_path / "vllm")], "port": port}
        error = await refusal(tmp_path, model="vllm/Qwen/Qwen3-4B", vllm=given)
    assert f"port {port} " in error and "policy_base_url" in error


async def test_the_example_rows_of_the_environments_are_the_default_and_a_check_writes_nothing(tmp_path: Path) -> None:
    plan = await plan_of(tmp_path, model="builtin", input_jsonl_fpath=None)
    assert plan.input_jsonl_fpath == "resources_servers/gsm8k/data/example.jsonl"
    both = ["gsm8k", "grl_sokoban"]
    several = await plan_of(tmp_path, model="builtin", environments=both, input_jsonl_fpath=None, num_repeats=3)
    assert (several.tasks.agents, several.expected) == ({"gsm8k_agent", "grl_sokoban_game_agent"}, 30)
    assert list(tmp_path.iterdir()) == []
