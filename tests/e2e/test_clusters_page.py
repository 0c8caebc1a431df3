"""The commands of docs/viewer.md write reports with clusters."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from rollyard.cli import reward_profile
from rollyard.errors import OperatorError
from rollyard.records.io.search_path import INSTALLED
from tests.support.doc_pages import commands, page, sections

SECTION = sections(page("viewer.md"))["Clusters of failures"]
LINES = [words for words in commands(SECTION) if words[0] == "ng_reward_profile"]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_a_command_of_the_page_finds_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(INSTALLED / "examples")
    assert reward_profile.run(words[1:]) == 0
    (written,) = tmp_path.glob("results/*/profile.json")
    clusters = orjson.loads(written.read_bytes())["clusters"]
    files = sum(word.endswith(".jsonl") for word in words)
    assert [bool(one["clusters"]) for one in clusters["runs"]] == [True] * files
    assert len(clusters["changes"]) == files - 1


def test_clusters_where_without_clusters_is_refused(tmp_path: Path) -> None:
    file = INSTALLED / "examples/hunt/recorded/early.jsonl"
    with pytest.raises(OperatorError, match="--clusters"):
        reward_profile.run([f"+jsonl_fpath=[{file}]", "+clusters_where=reward < 1", f"+output_dir={tmp_path}"])
