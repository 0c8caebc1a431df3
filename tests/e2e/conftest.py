from __future__ import annotations

from functools import partial

import pytest

from tests.support.commands import Command, in_this_process


@pytest.fixture
def ng(capsys: pytest.CaptureFixture[str]) -> Command:
    return partial(in_this_process, capsys=capsys)
