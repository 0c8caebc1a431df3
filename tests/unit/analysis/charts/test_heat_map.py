"""Heat maps of tasks by steps."""

from __future__ import annotations

from rollyard.analysis.charts.charts import heat_map


def test_each_value_has_a_cell_with_its_tooltip_and_a_missing_one_has_none() -> None:
    drawn = heat_map("tasks", ["0", "1"], [("7", [(0.0, "none"), (1.0, "all")]), ("8", [None, (0.5, "half")])], "task")
    assert drawn.count('class="cell"') == 3
    assert all(f"<title>{tip}</title>" in drawn for tip in ("none", "all", "half"))


def test_higher_values_are_darker_and_the_lowest_is_visible() -> None:
    drawn = heat_map("tasks", ["0", "1", "2"], [("7", [(0.0, "a"), (0.5, "b"), (1.0, "c")])], "task")
    opacities = [float(part.split('"')[1]) for part in drawn.split("fill-opacity=")[1:]]
    assert opacities == sorted(opacities) and opacities[0] > 0 and opacities[-1] == 1


def test_only_some_of_many_columns_are_labelled() -> None:
    columns = [f"step {number}" for number in range(40)]
    drawn = heat_map("tasks", columns, [("7", [(0.5, "x")] * 40)], "task")
    assert drawn.count("step ") == 10


def test_text_is_escaped() -> None:
    drawn = heat_map("<b>", ["<i>"], [("<u>", [(0.5, "<script>")])], "<em>")
    assert not any(tag in drawn for tag in ("<b>", "<i>", "<u>", "<script>", "<em>"))
