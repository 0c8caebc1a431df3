"""docs/training.md describes the endings as they are."""

from __future__ import annotations

import re

from rollyard.training.endings import DEFAULTS, EndingRules
from rollyard.training.run.settings_check import MAY_CHANGE
from rollyard.training.train_config import TrainConfig
from tests.support.doc_pages import page, sections

PAGE = page("training.md")


def test_the_page_lists_what_each_way_to_end_means() -> None:
    rows = re.findall(r"^- `(\w+)`: .*: `(\w+)`$", sections(PAGE)["How rollouts end"], re.MULTILINE)
    assert dict(rows) == {str(reason): str(treatment) for reason, treatment in DEFAULTS.items()}
    rules = EndingRules()
    for name, treatment in (("model_timeout", rules.model_timeout), ("server_timeout", rules.server_timeout)):
        assert f"(`endings.{name}`): `{treatment}`" in PAGE


def test_settings_that_may_change_exist() -> None:
    for name in MAY_CHANGE:
        top, _, below = name.partition(".")
        field = TrainConfig.model_fields[top]
        assert not below or below in field.annotation.model_fields, name  # type: ignore[union-attr]
