"""Charts are complete, bounded in size, described in words, and escape their text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollyard.analysis.charts import run_charts
from rollyard.analysis.charts.charts import Bar, Chart, ChartRow, Line, Point, bars, heat_map, histogram, lines
from rollyard.analysis.charts.svg import Axis, AxisScale, seconds, short
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.profile_records import ByCalls, ToolCalls
from tests.support.rollout_files import load_run, random_rows, row, write_failures

DRAWN = {"svg", "g", "a", "title", "text", "line", "rect", "circle", "path", "polyline", "polygon"}
ATTACK = """</title></svg><script>alert(1)</script><img src=x onerror="alert(2)">'&\u202e\x00"""


class EveryLink:
    def rollouts(self, **filters: str | float) -> str:
        return f"#/list?{'&'.join(filters)}"

    def task(self, task: int) -> str:
        return f"#/task/{task}"


@pytest.fixture
def charts(tmp_path: Path) -> Sequence[Chart]:
    first, second = load_run(tmp_path, random_rows(6, 4), "a"), load_run(tmp_path, random_rows(6, 4, seed=1), "b")
    return [
        *run_charts.profile_charts(first.profile, EveryLink()),
        *run_charts.side_by_side([first.profile, second.profile]),
        *run_charts.difference_charts(difference(first, second)),
        *run_charts.pace([run_charts.Moment(time=at, rollouts_per_s=at, in_progress=at) for at in range(3)]),
        *filter(None, [run_charts.log_probs([-0.1, -2.0, -0.5])]),
    ]


def test_every_chart_is_named_and_described_for_screen_readers_and_runs_nothing(charts: Sequence[Chart]) -> None:
    assert len(charts) >= 10
    for chart in charts:
        root = ElementTree.fromstring(chart.svg)
        assert chart.title and chart.caption.endswith((".", ":")) and len(root.get("aria-label") or "") > 20
        assert root.get("role") in (("group",) if root.find(".//a") is not None else ("img", "group"))
        assert all(link.get("aria-label") for link in root.iter("a"))
        marks = [element for element in root.iter() if element.get("class") == "mark"]
        assert marks and all(element.findtext("title") for element in marks), chart.name
        assert {element.tag for element in root.iter()} <= DRAWN
        assert not [name for element in root.iter() for name in element.attrib if name[:2] == "on" or name == "style"]
        assert "://" not in chart.svg


def test_names_from_rollouts_are_escaped(tmp_path: Path) -> None:
    rows = [row(0, i, float(i), finish_reason=ATTACK, agent_ref={"name": ATTACK + str(i)}) for i in range(3)]
    run = load_run(tmp_path, rows)
    write_failures(tmp_path / "rollouts.jsonl", [(0, 3, ATTACK)])
    svgs = [
        *(chart.svg for chart in run_charts.profile_charts(run.profile, EveryLink())),
        bars(ATTACK, [ChartRow(ATTACK, 1.0, ATTACK, ATTACK)]),
        histogram(ATTACK, [Bar(0, 1, 1, ATTACK, ATTACK)], Axis(ATTACK), Axis(ATTACK)),
        heat_map(ATTACK, [ATTACK], [(ATTACK, [(0.5, ATTACK)])], ATTACK),
        lines(ATTACK, [Line(ATTACK, [Point(0, 0.5, None, None, ATTACK)])], Axis(ATTACK), Axis(ATTACK, percent=True)),
    ]
    for svg in svgs:
        assert {element.tag for element in ElementTree.fromstring(svg).iter()} <= DRAWN
        assert "\u202e" not in svg and "\x00" not in svg
    assert "\\u202e" in svgs[-1]


@pytest.mark.parametrize("tokens", [2, 240, 5_000, 100_000])
def test_the_chart_stays_small_for_any_number_of_tokens(tokens: int) -> None:
    chart = run_charts.log_probs([-(index % 7) / 3 for index in range(tokens)])
    assert chart is not None
    assert len(list(ElementTree.fromstring(chart.svg).iter())) < 1_000 and len(chart.svg) < 130_000


def test_a_large_series_keeps_its_lowest_value() -> None:
    values = [-1.0] * 50_000
    values[31_234] = -50.0
    chart = run_charts.log_probs(values)
    assert chart is not None
    [line] = ElementTree.fromstring(chart.svg).iter("polyline")
    assert max(float(point.split(",")[1]) for point in line.attrib["points"].split()) == pytest.approx(24 + 120)
    assert "lowest log-probability −50" in chart.svg


def test_many_tool_call_counts_are_grouped_into_few_bars_without_loss() -> None:
    counts = [ByCalls(tool_calls=n, rollouts=2, mean_reward=1.0, solved=1) for n in range(1_000)]
    chart = run_charts.by_calls(ToolCalls(mean=1, min=0, max=999, correlation=None, by_count=counts))
    assert chart.numbers is not None
    rows = [row.cells for row in chart.numbers.rows]
    assert (len(rows) <= 60, sum(int(one[1]) for one in rows), sum(int(one[3]) for one in rows)) == (True, 2_000, 1_000)


def test_a_line_with_many_points_is_thinned_but_keeps_its_ends() -> None:
    points = [Point(k, 0.5, 0.4, 0.6, f"pass@{k}") for k in range(1, 1_025)]
    svg = lines("l", [Line("pass@k", points)], Axis("k", integers=True), Axis("share", percent=True))
    assert svg.count("<circle") <= 128 and "<title>pass@1</title>" in svg and "<title>pass@1024</title>" in svg


@pytest.mark.parametrize("values", [(0.0, 0.0), (1e60, -1e60), (-1.7e308, 1.7e308), (5e-324, 1e-300), (1e15, 1e15 + 1)])
def test_extreme_rewards_can_be_drawn(values: tuple[float, float]) -> None:
    drawn = histogram("t", [Bar(v, v, abs(v), str(v)) for v in sorted(values)], Axis("x"), Axis("y"))
    assert "nan" not in drawn and "inf" not in drawn
    ElementTree.fromstring(drawn)


def test_numbers_durations_and_ticks_are_brief() -> None:
    numbers = (0.1 + 0.2 - 0.3, -2.6388, 1234.5, 12_345.0, 1.5e6, 5e59, -7.2e-6)
    assert [*map(short, numbers)] == ["0", "−2.639", "1,234", "12.35k", "1.5M", "5.00e+59", "−7.20e-6"]
    assert [*map(seconds, (0.0041, 3.24, 274.0, 7_500.0))] == ["4.1 ms", "3.24 s", "4 min 34 s", "2 h 5 min"]
    assert AxisScale(0, 96, ticks=6).ticks == [0, 20, 40, 60, 80]
    assert AxisScale(1, 4, integers=True).ticks == [1, 2, 3, 4]


def test_each_value_of_a_heat_map_has_a_cell_with_its_tooltip_and_higher_ones_are_darker() -> None:
    drawn = heat_map("x", ["0", "1"], [("7", [(0.0, "none"), (1.0, "all")]), ("8", [None, (0.5, "half")])], "task")
    assert drawn.count('class="cell"') == 3
    assert all(f"<title>{tip}</title>" in drawn for tip in ("none", "all", "half"))
    none, every, half = (float(part.split('"')[1]) for part in drawn.split("fill-opacity=")[1:])
    assert 0 < none < half < every == 1
