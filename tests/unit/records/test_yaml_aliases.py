from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.cli.gate import read_rules
from rollyard.launchers.slurm.sweep import load_yaml
from rollyard.records.errors import OperatorError
from rollyard.services.config.load import read_yaml
from rollyard.services.config.settings_file import load_settings
from rollyard.services.server.settings import ServerSettings


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_a_config_whose_aliases_expand_without_end_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(bomb(9))
    for read in (read_yaml, read_rules):
        with pytest.raises(OperatorError, match=r"bomb\.yaml.*aliases.*1,000,000") as raised:
            read(path)
        assert "\n" not in str(raised.value)
    with pytest.raises(Exception, match="aliases"):
        load_yaml(bomb(9))


def test_usual_aliases_are_read(tmp_path: Path) -> None:
    path = tmp_path / "usual.yaml"
    path.write_text("base: &base {a: 1}\nother:\n  <<: *base\n  b: '*'\n")
    assert read_yaml(path).other == {"a": 1, "b": "*"}


def test_usual_references_are_resolved(tmp_path: Path) -> None:
    path = tmp_path / "usual.yaml"
    path.write_text("host: '${names.here}'\nnames: {here: '${.all[0]}', all: [a.b]}\n")
    with pytest.raises(OperatorError, match="names"):
        load_settings(ServerSettings, str(path), [], [tmp_path])
    path.write_text("host: '${description}'\ndescription: a.b\n")
    assert load_settings(ServerSettings, str(path), [], [tmp_path]).host == "a.b"
