"""ng_doctor sandbox: what it prints."""

from __future__ import annotations

import orjson
import pytest

from rollyard.cli import doctor
from rollyard.cli import doctor as sandbox
from rollyard.services.sandbox.records import Layers


def test_the_doctor_lists_the_active_layers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["ng_doctor", "sandbox", "+json=true"])
    with pytest.raises(SystemExit) as ended:
        doctor.main()
    printed = capsys.readouterr().out
    assert ended.value.code == 0, printed
    assert Layers.model_validate(orjson.loads(printed)).in_force


def test_the_doctor_lists_missing_layers_with_the_reason() -> None:
    text = sandbox.format_layers(Layers(mode="landlock", in_force=("seccomp",), missing=("bubblewrap: not there",)))
    assert text.splitlines()[1:] == ["active:", "  seccomp", "missing:", "  bubblewrap: not there"]


def test_the_doctor_fails_with_an_unusable_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert sandbox.run(["+python=/bin/true"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert "/bin/true" in line
