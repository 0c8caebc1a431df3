from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from rollyard.analysis.charts.charts import Bar, histogram
from rollyard.analysis.charts.run_charts import profile_charts
from rollyard.analysis.charts.svg import Axis
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.load import load
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.metrics.run_pair import PairLevel, RunComparisons, compare_runs, with_holm
from rollyard.analysis.report import comparison_report, formatting
from rollyard.analysis.report.document import SCHEMA_VERSION, Report, escaped, html, markdown, markdown_page
from rollyard.analysis.report.formatting import ViewerLinks
from rollyard.analysis.report.sections import headlines
from rollyard.analysis.report.terminal_summary import summary, task_rows
from rollyard.cli import reward_profile
from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from tests.support.rollout_files import grid, load_run, random_rows, row, solved, write, write_failures, write_manifest

ATTACK = """</title></svg></td><script>alert(1)</script><img src=x onerror=alert(2)>|`*[a](javascript:b)"'&\u202e"""


class Page(HTMLParser):
    """Collects the tags of a page and checks that they close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.text = ""
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def report(*runs: Run) -> Report:
    differences = [difference(runs[0], other) for other in runs[1:]]
    return Report(version="1", runs=[run.profile for run in runs], differences=differences)


def printed(found: Report, capsys: pytest.CaptureFixture[str]) -> str:
    summary(found, [])
    return capsys.readouterr().out


@pytest.fixture
def incomplete(tmp_path: Path) -> Run:
    write_manifest(tmp_path / "rollouts.jsonl", tasks=7, repeats=4)
    write_failures(tmp_path / "rollouts.jsonl", [(6, 0, "timeout")])
    return load_run(tmp_path, random_rows(6, 4)[:20])


@pytest.fixture
def hostile(tmp_path: Path) -> Run:
    timings = {f"{ATTACK[:40]}_s": 1.0, "total_s": 2.0}
    rows = [
        row(0, i, float(i), finish_reason=f"{ATTACK}{i}", agent_ref={"name": f"{ATTACK}{i}"}, timings=timings)
        for i in range(3)
    ]
    for rollout in rows:
        rollout["response"]["model"] = ATTACK
    path = write(tmp_path / "x.jsonl", rows)
    write_manifest(path, tasks=1, repeats=4, agent_name=ATTACK)
    write_failures(path, [(0, 3, ATTACK)])
    return load(path, ATTACK)


def test_every_headline_number_states_how_much_is_measured(incomplete: Run) -> None:
    text = markdown(report(incomplete))
    table = text.split("## Headline")[1].split("##")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ") and "as measured" not in line]
    assert len(lines) == len(headlines(incomplete.profile))
    assert all("20 of 28 measured" in line for line in lines)
    page = Page(html(report(incomplete)))
    tiles = sum(tag == "div" and attrs.get("class") == "tile" for tag, attrs in page.tags)
    assert page.text.count("20 of 28 measured") >= len(lines) + tiles


def test_only_the_numbers_of_an_incomplete_run_have_an_asterisk_and_bounds(tmp_path: Path, incomplete: Run) -> None:
    text = markdown(report(incomplete))
    assert re.search(r"\| success rate \| [\d.]+% \(\d+ / 20\) \\\* \|", text), text
    assert "| as measured | missing as zero | lowest | highest |" in text and " 1 have none" in text
    write_manifest(tmp_path / "x.jsonl", 2, 2)
    text = markdown(report(load_run(tmp_path, grid([1, 2], 2), "x")))
    assert r"\*" not in text and "## Bounds" not in text and "All 4 expected rollouts" in text


MEANS = {"share", "share of attempts", "solved", "mean reward", "mean", "pass@k", "pass^k", "difference", "as measured"}
"""Columns of which the next one is an interval, except in the first column of a table and in the bounds."""


def test_every_mean_and_share_in_a_table_is_followed_by_its_interval(tmp_path: Path, incomplete: Run) -> None:
    other = load_run(tmp_path, random_rows(6, 4, seed=1), "other")
    heads = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for text in (markdown(report(incomplete)), markdown(report(incomplete, other)))
        for line, below in pairwise(text.splitlines())
        if below.startswith("|---") and "missing as zero" not in line
    ]
    assert len(heads) > 15
    bare = [
        (head, name)
        for head in heads
        for name, following in pairwise([*head[1:], ""])
        if name in MEANS and not following.startswith("95% interval")
    ]
    assert bare == []


def test_a_report_has_its_sections_in_order_and_on_two_runs_begins_with_their_difference(
    tmp_path: Path, incomplete: Run
) -> None:
    titles = re.findall(r"^## (.+)$", markdown(report(incomplete)), re.MULTILINE)
    scored = ["Headline", "Bounds", "Failures", "Why episodes ended", "Tasks", "pass@k and pass^k"]
    assert titles == [*scored, "Rewards", "Tool calls", "Turns and tokens", "Time", "How the numbers are computed"]
    other = load_run(tmp_path, random_rows(6, 4, seed=1), "other")
    page = html(report(incomplete, other))
    titles = re.findall(r"<h2>(.+?)</h2>", page)
    assert titles == ["other against rollouts", "Side by side", "rollouts", "other", "How the numbers are computed"]
    assert re.findall(r"<details><summary><h2>(.+?)</h2>", page) == titles[2:]


def test_the_page_of_a_comparison_begins_with_the_verdict(tmp_path: Path) -> None:
    rows = [grid([(task * 7 + seed) % 5 for task in range(20)], 4) for seed in (0, 1)]
    for one in rows[1]:  # other answers, else the runs are two verdicts on the same ones
        one["response"]["usage"]["output_tokens"] = 12
    a, b = (load_run(tmp_path, rows[seed], str(seed)) for seed in (0, 1))
    level = PairLevel(effect=0.1, resamples=200)
    pairs, tests = with_holm([compare_runs(a, b, [], level), compare_runs(b, a, [], level)])
    more = {"alpha": 0.05, "effect": 0.1, "seed": 0, "resamples": 200, "tests": tests, "pairs": pairs}
    title, sections = comparison_report.document(RunComparisons.model_validate({"version": "1", **more}), ViewerLinks())
    text = markdown_page(title, sections, "")
    assert title == "1, 0 against 0" and tests == 2
    places = [text.index(part) for part in ("solve_rate: The", "| p (Holm) |", "Costs", "Tasks gained")]
    assert places == sorted(places)


def test_hostile_names_are_escaped_in_the_page(hostile: Run, incomplete: Run) -> None:
    for document in (report(hostile), report(incomplete, hostile)):
        text = html(document)
        page = Page(text)
        tags = {tag for tag, _ in page.tags}
        assert not tags & {"script", "img", "a", "iframe", "object", "link", "form", "base"}
        assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
        assert "\u202e" not in text
        assert "<script>alert(1)</script>" in page.text


def test_hostile_names_are_escaped_in_the_markdown(hostile: Run) -> None:
    text = markdown(report(hostile))
    assert not re.search(r"(?<!\\)<(script|img|/)|(?<!\\)\[a(?<!\\)\]\(", text)
    for line in text.splitlines():
        assert line[:1] != "|" or 4 <= len(re.split(r"(?<!\\)\|", line)) <= 11, line


@pytest.mark.parametrize("text", ["a|b", "*a*", "[a](b)", "<b>", "`a`", "\\", "~~a~~", "_a_"])
def test_every_markup_character_is_escaped(text: str) -> None:
    assert re.sub(r"\\(.)", r"\1", escaped(text)) == text
    assert escaped(text) != text


def test_the_page_loads_no_external_resource(incomplete: Run) -> None:
    text = html(report(incomplete, incomplete))
    assert not re.search(r"https?://|url\(|@import|src=|href=", text)
    assert "default-src 'none'" in text


def test_the_json_has_no_nan_round_trips_and_has_the_published_schema_of_its_version(
    hostile: Run, incomplete: Run
) -> None:
    for run in (hostile, incomplete):
        data = orjson.dumps(report(run).model_dump())
        assert b"NaN" not in data and b"Infinity" not in data
        assert Report.model_validate_json(data) == report(run)
        assert orjson.loads(data)["schema_version"] == SCHEMA_VERSION
    published = INSTALLED / "analysis" / "report" / "schemas" / f"profile-{SCHEMA_VERSION}.json"
    assert schema(Report.model_json_schema(mode="serialization")) == orjson.loads(published.read_bytes()), (
        "If a field was removed, renamed or got another type, increment SCHEMA_VERSION. Then write the schema"
    )


def schema(value: Any) -> Any:
    """The schema without descriptions, which may be reworded at any time."""
    if isinstance(value, list):
        return [schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    texts = {key for key in ("description", "title") if isinstance(value.get(key), str)}
    return {key: schema(one) for key, one in value.items() if key not in texts}


def test_a_run_without_measured_rollouts_still_has_a_report(tmp_path: Path) -> None:
    write_manifest(tmp_path / "rollouts.jsonl", 2, 2)
    write_failures(tmp_path / "rollouts.jsonl", [(0, 0, "timeout")])
    document = report(load_run(tmp_path, []))
    assert "Only 0 of 4 measured" in markdown(document)
    assert "timeout" in Page(html(document)).text


def test_the_height_of_a_bar_is_proportional_to_its_value() -> None:
    drawn = histogram("t", [Bar(0, 1, 50, "a"), Bar(1, 2, 100, "b"), Bar(2, 3, -25, "c")], Axis("x"), Axis("y"))
    bars = [element for element in ElementTree.fromstring(drawn).iter("rect") if element.get("class") == "bar"]
    heights = [float(bar.get("height") or 0) for bar in bars]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert heights[2] == pytest.approx(0.5 * heights[0], abs=0.2)


def test_task_rows_have_nemo_gyms_keys_and_the_keys_of_the_dataset(tmp_path: Path) -> None:
    run = load_run(tmp_path, [*grid([1], 2), row(2, 0, 0.5, success=False)])
    inputs = write(tmp_path / "tasks.jsonl", [{"level": level} for level in range(3)])
    rows = [orjson.loads(line) for line in task_rows(run, None, inputs)]
    keys = "level _ng_task_index avg_reward std_reward min_reward max_reward median_reward total_samples"
    keys += " expected_samples pass_rate pass_rate_total pass_rate_passed pass_threshold"
    values = (0, 0, 0.5, pytest.approx(0.5**0.5), 0.0, 1.0, 0.5, 2, None, 0.5, 2, 1, None)
    assert rows[0] == dict(zip(keys.split(), values, strict=True))
    assert (rows[1]["level"], rows[1]["_ng_task_index"]) == (2, 2)


def test_numbers_per_dataset_precede_numbers_over_a_whole_mixture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = grid([0, 1, 2, 2, 1, 0], 2)
    for number, one in enumerate(rows):
        name = "rooms" if number < 6 else "sums"
        one |= {"dataset_name": name, "agent_ref": {"name": name}, "reward": one["reward"] * (10 if number < 6 else 1)}
    mixed = report(load_run(tmp_path, rows))
    text = markdown(mixed)
    assert text.index("## Datasets") < text.index("## Headline")
    assert "| sums | 6 | 3 | 50.00% (3 / 6) |" in text and "pass@2" in text and "sums, 2" in text
    for page in (text, html(mixed)):
        assert "No mean reward" in page and "Correlation" not in page
    assert "| tool calls | rollouts | share | 95% interval | solved | 95% interval |" in text
    assert "mean reward by number" not in text.lower()
    lines = [line.strip() for line in printed(mixed, capsys).splitlines()]
    assert lines[1].startswith("rooms: success rate 50.00%") and "not averaged" in lines[-1]


def test_every_output_states_how_many_tasks_pass_at_k_covers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [one for one in grid([1] * 10, 4) if one["_ng_task_index"] < 3 or one["_ng_rollout_index"] < 2]
    found = report(load_run(tmp_path, rows))
    for page in (markdown(found), html(found), printed(found, capsys)):
        assert "(over 10 tasks)" in page and "(over 3 of 10 tasks)" in page
    assert "3 of 10 have 4 rollouts" in markdown(found)


def answered(**more: str) -> list[Json]:
    return [
        solved(task, repeat, one == "7", extracted_answer=one, **more)
        for task, own in enumerate(("778", "788"))
        for repeat, one in enumerate(own)
    ]


def test_cons_at_k_stands_beside_pass_at_k_in_every_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = load_run(tmp_path, answered())
    text, page = markdown(report(run)), html(report(run))
    assert "| cons@3 | 50.00% (over 2 tasks) |" in text and "## pass@k, pass^k and cons@k" in text
    assert "| k | pass@k | 95% interval | pass^k | 95% interval | cons@k | 95% interval | tasks |" in text
    assert "cons@3" in page and "cons@k: " in page
    assert re.search(r"cons@3 +50\.00% \(over 2 tasks\)", printed(report(run), capsys))
    [chart] = [one for one in profile_charts(run.profile) if one.name == "pass_at"]
    assert chart.svg.count("cons@") >= 3 and " 50" in chart.caption
    assert [orjson.loads(one)["majority_correct"] for one in task_rows(run, None, None)] == [True, False]


def test_a_mixture_states_cons_at_k_by_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    games = [{**one, "_ng_task_index": 5, "dataset_name": "sokoban"} for one in grid([2], 3)]
    mixed = report(load_run(tmp_path, [*answered(dataset_name="gsm8k"), *games]))
    text = markdown(mixed)
    assert "| pass@3 100.00% | cons@3 50.00% |" in text and "| pass@3 100.00% | – |" in text
    assert "cons@3 50.00%" in printed(mixed, capsys)


def test_numbers_hide_rounding_noise_but_not_small_values() -> None:
    for form in ("reward", "signed", "points", "number", "seconds"):
        for noise in (2.78e-17, -2.78e-17, -0.0):
            assert not re.search(r"e-|-", formatting.FORMS[form](noise)), form
    assert formatting.points(-0.000001) == "+0.00" and formatting.signed(7.2e-06) == "+7.2e-06"
    shown = [formatting.reward(value) for value in (-7.2e-06, -0.9, 5e59 / 3)]
    assert shown == ["-7.2e-06", "-0.9000", "1.66667e+59"]


BASE = "http://127.0.0.1:8080"


def links(folder: Path, *options: str) -> set[str]:
    reward_profile.run([*options, f"+viewer={BASE}", f"+output_dir={folder}"])
    return set(re.findall(rf"\(<{BASE}/#([^>]*)>\)", next(folder.glob("profile*.md")).read_text()))


def test_in_a_series_links_name_the_files_by_their_place_in_the_command_not_by_their_step(tmp_path: Path) -> None:
    for step, counts in ((25, [2, 2]), (10, [1, 1]), (0, [0, 0])):
        write(tmp_path / f"step_{step}.jsonl", grid(counts, 2))
    names = ",".join(str(tmp_path / f"step_{step}.jsonl") for step in (25, 10, 0))
    found = links(tmp_path / "out", f"+jsonl_fpath=[{names}]", "+series=true")
    assert "/compare/2/0" in found
    assert {link for link in found if link.endswith("/findings")} == {"/runs/2/findings", "/runs/0/findings"}
    assert "/runs/0/findings/no_variance" in found and not any(link.startswith("/runs/1") for link in found)


def test_a_report_on_an_expression_does_not_link_to_the_findings_of_all_rollouts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", grid([2] * 4, 2))
    assert "/runs/0/findings/no_variance" in links(tmp_path / "all", f"+jsonl_fpath=[{path}]")
    assert not [
        link for link in links(tmp_path / "some", f"+jsonl_fpath=[{path}]", "+where=task > 1") if "find" in link
    ]


def test_the_conditions_of_a_report_are_part_of_its_links() -> None:
    pages = ViewerLinks(f"{BASE}/", where="task > 1")
    assert pages.finding(0, "loop", {"end": "max_steps"}) == f"{BASE}/#/runs/0?end=max_steps&where=task+%3E+1"
    assert pages.finding(0, "x", {"where": "turns > 2"}).endswith("?where=%28task+%3E+1%29+and+%28turns+%3E+2%29")
    assert pages.comparison(0, 1) == ""
