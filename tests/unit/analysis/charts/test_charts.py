"""Charts are complete, bounded in size, described in words, and escape their text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rollyard.analysis.charts.charts import Bar, Chart, ChartRow, Line, Point, bars, heat_map, histogram, lines
from rollyard.analysis.charts.run_charts import (
    Moment,
    by_calls,
    difference_charts,
    log_probs,
    pace,
    profile_charts,
    side_by_side,
)
from rollyard.analysis.charts.svg import Axis, AxisScale, seconds, short
from rollyard.analysis.metrics.comparison import difference
from rollyard.analysis.metrics.profile_records import ByCalls, ToolCalls
from tests.support.rollout_files import load_run, random_rows, row, write, write_failures

ATTACK = """</title></svg><script>alert(1)</script><img src=x onerror="alert(2)">'&\u202e\x00"""


class EveryLink:
    """Links that show their target."""

    def rollouts(self, **filters: str | float) -> str:
        return f"#/list?{'&'.join(filters)}"

    def task(self, task: int) -> str:
        return f"#/task/{task}"


def marks(svg: str) -> int:
    return sum(1 for _ in ElementTree.fromstring(svg).iter())


def every_chart(folder: Path) -> list[Chart]:
    first, second = load_run(folder / "a", random_rows(6, 4)), load_run(folder / "b", random_rows(6, 4, seed=1))
    return [
        *profile_charts(first.profile, EveryLink()),
        *side_by_side([first.profile, second.profile]),
        *difference_charts(difference(first, second)),
        *pace([Moment(time=float(step), rollouts_per_s=step, in_progress=step) for step in range(3)]),
        *filter(None, [log_probs([-0.1, -2.0, -0.5])]),
    ]


@pytest.fixture
def charts(tmp_path: Path) -> Sequence[Chart]:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return every_chart(tmp_path)


def test_every_chart_has_a_title_a_caption_and_a_name_for_screen_readers(charts: Sequence[Chart]) -> None:
    assert len(charts) >= 10
    for chart in charts:
        label = ElementTree.fromstring(chart.svg).get("aria-label") or ""
        assert chart.title and chart.caption.endswith((".", ":"))
        assert len(label) > 20
        root = ElementTree.fromstring(chart.svg)
        linked = root.find(".//a") is not None
        assert root.get("role") == "group" if linked else root.get("role") in ("img", "group")
        assert all(link.get("aria-label") for link in root.iter("a"))


def test_every_mark_has_a_title(charts: Sequence[Chart]) -> None:
    for chart in charts:
        marks_of_chart = [
            element for element in ElementTree.fromstring(chart.svg).iter() if element.get("class") == "mark"
        ]
        assert marks_of_chart
        assert all(element.findtext("title") for element in marks_of_chart), chart.name


def test_charts_contain_no_script_inline_style_or_url(charts: Sequence[Chart]) -> None:
    for chart in charts:
        for element in ElementTree.fromstring(chart.svg).iter():
            assert element.tag in {
                *("svg", "g", "a", "title", "text", "line", "rect", "circle", "path", "polyline", "polygon"),
            }
            assert not [name for name in element.attrib if name == "style" or name.startswith("on")]
        assert "://" not in chart.svg


def test_names_from_rollouts_are_escaped(tmp_path: Path) -> None:
    rows = [row(0, i, float(i), finish_reason=ATTACK, agent_ref={"name": ATTACK + str(i)}) for i in range(3)]
    path = write(tmp_path / "x.jsonl", rows)
    write_failures(path, [(0, 3, ATTACK)])
    svgs = [
        *(chart.svg for chart in profile_charts(load_run(tmp_path, rows).profile, EveryLink())),
        bars(ATTACK, [ChartRow(ATTACK, 1.0, ATTACK, ATTACK)]),
        histogram(ATTACK, [Bar(0, 1, 1, ATTACK, ATTACK)], Axis(ATTACK), Axis(ATTACK)),
        heat_map(ATTACK, [ATTACK], [(ATTACK, [(0.5, ATTACK)])], ATTACK),
        lines(ATTACK, [Line(ATTACK, [Point(0, 0.5, None, None, ATTACK)])], Axis(ATTACK), Axis(ATTACK, percent=True)),
    ]
    for svg in svgs:
        tags = {element.tag for element in ElementTree.fromstring(svg).iter()}
        assert not tags & {"script", "img"}
        assert "\u202e" not in svg and "\x00" not in svg
    assert "\\u202e" in svgs[-1]


@pytest.mark.parametrize("tokens", [2, 240, 5_000, 100_000])
def test_the_chart_stays_small_for_any_number_of_tokens(tokens: int) -> None:
    chart = log_probs([-(index % 7) / 3 for index in range(tokens)])
    assert chart is not None
    assert marks(chart.svg) < 1_000
    assert len(chart.svg) < 130_000


def test_a_large_series_keeps_its_lowest_value() -> None:
    values = [-1.0] * 50_000
    values[31_234] = -50.0
    chart = log_probs(values)
    assert chart is not None
    low = max(float(point.split(",")[1]) for point in _line(chart.svg))
    assert low == pytest.approx(24 + 120)
    assert "lowest log-probability −50" in chart.svg


def _line(svg: str) -> list[str]:
    found = next(element for element in ElementTree.fromstring(svg).iter("polyline"))
    return (found.get("points") or "").split()


def test_many_tool_call_counts_are_grouped_into_few_bars_without_loss() -> None:
    counts = [ByCalls(tool_calls=n, rollouts=2, mean_reward=1.0, solved=1) for n in range(1_000)]
    chart = by_calls(ToolCalls(mean=1, min=0, max=999, correlation=None, by_count=counts))
    assert chart.numbers is not None
    rows = [row.cells for row in chart.numbers.rows]
    assert len(rows) <= 60
    assert sum(int(cells[1]) for cells in rows) == 2_000 and sum(int(cells[3]) for cells in rows) == 1_000


def test_a_line_with_many_points_is_thinned_but_keeps_its_ends() -> None:
    points = [Point(k, 0.5, 0.4, 0.6, f"pass@{k}") for k in range(1, 1_025)]
    svg = lines("l", [Line("pass@k", points)], Axis("k", integers=True), Axis("share", percent=True))
    assert svg.count("<circle") <= 128
    assert "<title>pass@1</title>" in svg and "<title>pass@1024</title>" in svg


@pytest.mark.parametrize("values", [(0.0, 0.0), (1e60, -1e60), (-1.7e308, 1.7e308), (5e-324, 1e-300), (1e15, 1e15 + 1)])
def test_extreme_rewards_can_be_drawn(values: tuple[float, float]) -> None:
    drawn = histogram("t", [Bar(v, v, abs(v), str(v)) for v in sorted(values)], Axis("x"), Axis("y"))
    assert "nan" not in drawn and "inf" not in drawn
    ElementTree.fromstring(drawn)


def test_ticks_are_round_and_within_the_range() -> None:
    assert AxisScale(0, 96, ticks=6).ticks == [0, 20, 40, 60, 80]
    assert AxisScale(1, 4, integers=True).ticks == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.1 + 0.2 - 0.3, "0"), (-2.6388, "−2.639"), (1234.5, "1,234"), (12_345.0, "12.35k"), (1.5e6, "1.5M")),
        *((5e59, "5.00e+59"), (-7.2e-6, "−7.20e-6")),
    ],
)
def test_numbers_are_formatted_briefly(value: float, text: str) -> None:
    assert short(value) == text


def test_durations_use_a_fitting_unit() -> None:
    found = [seconds(value) for value in (0.0041, 3.24, 274.0, 7_500.0)]
    assert found == [
        "4.1 ms",
        "3.24 s",
        "4 min 34 s",
        "2 h 5 min",
    ]


def test_each_value_has_a_cell_with_its_tooltip_and_a_missing_one_has_none() -> None:
    drawn = heat_map("tasks", ["0", "1"], [("7", [(0.0, "none"), (1.0, "all")]), ("8", [None, (0.5, "half")])], "task")
    assert drawn.count('class="cell"') == 3
    assert all(f"<title>{tip}</title>" in drawn for tip in ("none", "all", "half"))


def test_higher_values_are_darker_and_the_lowest_is_visible() -> None:
    drawn = heat_map("tasks", ["0", "1", "2"], [("7", [(0.0, "a"), (0.5, "b"), (1.0, "c")])], "task")
    opacities = [float(part.split('"')[1]) for part in drawn.split("fill-opacity=")[1:]]
    assert opacities == sorted(opacities) and opacities[0] > 0 and opacities[-1] == 1
