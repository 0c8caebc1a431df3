"""ng_doctor: what it looks at on this machine. The rollout that it plays is in tests/faults/crash."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from rollyard.services.cli import doctor
from rollyard.services.cli.diagnostics.machine import run
from rollyard.services.errors import OperatorError
from rollyard.services.types import Json

VLLM = "+config_paths=responses_api_models/vllm_model/configs/vllm_model.yaml"
NOBODY = ("+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=sk-secret", "+policy_model_name=m")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examined(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Json]]:
    status = run(["+json=true", "+rollout=false", *arguments])
    told = orjson.loads(capsys.readouterr().out)
    assert told["ok"] == (status == 0)
    return status, {finding["name"]: finding for finding in told["findings"]}


def test_it_looks_at_what_a_run_needs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, found = examined(capsys)
    needs = {"python", "processors", "memory", "open files", "folder", "temporary", "clock", "loopback", "ports"}
    assert needs | {"proxies", "terminal", "gpus", "[math]", "[ray]", "runs", "sandbox"} <= found.keys()
    assert not any(folder.iterdir())


def test_an_absent_extra_is_named_with_what_it_is_for_and_what_installs_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _, found = examined(capsys)
    assert found["[math]"]["status"] == "absent" and "gsm8k" in found["[math]"]["found"]
    assert "rollyard[math]" in found["[math]"]["mend"]


def test_a_folder_that_cannot_be_written_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / ".rollyard").touch()
    status, found = examined(capsys)
    assert status == 1 and found["folder"]["status"] == "failed" and found["folder"]["mend"]


def test_a_proxy_is_named_without_its_password(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:sk-secret@proxy.example:3128")
    _, found = examined(capsys)
    assert "proxy.example" in found["proxies"]["found"] and "sk-secret" not in found["proxies"]["found"]


def test_a_config_whose_endpoint_does_not_answer_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = examined(capsys, VLLM, *NOBODY)
    assert status == 1 and "policy_model: http://127.0.0.1:1/v1: no connection" in found["endpoint"]["found"]


def test_a_config_that_cannot_be_loaded_is_wrong_usage(folder: Path) -> None:
    with pytest.raises(OperatorError, match="policy_base_url"):
        run([VLLM, "+rollout=false"])


@pytest.mark.parametrize(("word", "hint"), [("sandbx", "did you mean 'sandbox'?"), ("machine", "ng_doctor tokens")])
def test_an_unknown_check_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, hint: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["ng_doctor", word])
    with pytest.raises(SystemExit) as raised:
        doctor.main()
    assert raised.value.code == 2 and hint in capsys.readouterr().err
