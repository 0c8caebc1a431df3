"""ng_doctor: its checks of this machine. tests/faults/crash/test_doctor.py tests the rollout that it plays."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from rollyard.cli.doctor_machine import run
from rollyard.records.types import Json

VLLM = "+config_paths=responses_api_models/vllm_model/configs/vllm_model.yaml"
CLOSED_PORT = ("+policy_base_url=http://127.0.0.1:1/v1", "+policy_api_key=none", "+policy_model_name=m")


def findings_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Json]]:
    status = run(["+json=true", "+rollout=false", *arguments])
    report = orjson.loads(capsys.readouterr().out)
    assert report["ok"] == (status == 0)
    return status, {finding["name"]: finding for finding in report["findings"]}


def test_everything_that_a_run_needs_is_checked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, findings = findings_of(capsys)
    basics = {"python", "processors", "memory", "open files", "folder", "temporary", "clock", "loopback", "ports"}
    assert basics | {"proxies", "terminal", "gpus", "[math]", "[ray]", "runs", "sandbox"} <= findings.keys()
    assert not any(here.iterdir())


def test_a_missing_extra_is_named_with_its_purpose_and_the_command_that_installs_it(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    _, findings = findings_of(capsys)
    assert findings["[math]"]["status"] == "absent" and "gsm8k" in findings["[math]"]["found"]
    assert "rollyard[math]" in findings["[math]"]["mend"]


def test_a_folder_that_cannot_be_written_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / ".rollyard").touch()
    status, findings = findings_of(capsys)
    assert status == 1 and findings["folder"]["status"] == "failed" and findings["folder"]["mend"]


def test_a_proxy_is_named_without_its_password(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:sk-secret@proxy.example:3128")
    _, findings = findings_of(capsys)
    assert "proxy.example" in findings["proxies"]["found"] and "sk-secret" not in findings["proxies"]["found"]


def test_a_config_with_an_unreachable_endpoint_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = findings_of(capsys, VLLM, *CLOSED_PORT)
    assert status == 1 and "policy_model: http://127.0.0.1:1/v1: " in findings["endpoint"]["found"]
