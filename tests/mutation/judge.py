"""Finds the test that notices a mutation, and keeps what was found, so that an interrupted check goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TypedDict

from tests.mutation.mutations import Mutation
from tests.mutation.suites import Suite

_FIRST_BATCH = 4
"""Files in the first run of pytest. Each further run has three times as many."""


class Found(TypedDict, total=False):
    """What a test file found about a mutation, or (`passes` alone) a test about the unchanged code."""

    caught: str | None
    cpu_s: float
    limit_s: float
    """The run ended in the middle of the file, at this limit of CPU time."""
    passes: bool


class Results:
    """Appended to a file, one JSON object on each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()
        self._found = {json.dumps(row["of"]): row["found"] for row in map(json.loads, path.read_text().splitlines())}

    def get(self, *of: str) -> Found | None:
        return self._found.get(json.dumps(of))

    def add(self, *of: str, found: Found) -> None:
        self._found[json.dumps(of)] = found
        with self._path.open("a") as file:
            file.write(json.dumps({"of": of, "found": found}) + "\n")


@dataclass(frozen=True)
class Judge:
    results: Results
    cpu_s: float
    """CPU seconds of tests after which a mutation counts as not noticed."""
    hang_s: float

    def judge(self, suite: Suite, path: str, mutation: Mutation, name: str, first: str | None = None) -> str | None:
        """Return the test that notices a mutation, or None.

        A test that notices it fails, or hangs, with the mutation and passes without. Results are kept under the `name`
        of the mutation. The file of the test `first` is tried before the others.
        """
        tests = suite.imports.tests_of(path)
        size = _FIRST_BATCH
        if first and (file := file_of(first)) in tests:
            tests = list(dict.fromkeys([file, *tests]))
            size = 1
        spent, failing = 0.0, set[str]()
        while tests and spent < self.cpu_s:
            if known := self._known(suite, name, tests[0]):
                if known["caught"]:
                    return known["caught"]
                spent += known["cpu_s"]
                del tests[0]
                continue
            batch = list(takewhile(lambda test: not self._known(suite, name, test), tests[:size]))
            with suite.changed(path, mutation.apply(suite.source(path))):
                run = suite.run(batch, self.cpu_s - spent, self.hang_s, failing)
            files = list(run.cpu_s)
            for test in batch if run.finished else files[:-1]:
                self._keep(suite, name, test, Found(caught=None, cpu_s=run.cpu_s.get(test, 0.0)))
            if run.finished:
                size = max(_FIRST_BATCH, size * 3)
            elif run.failed is None:
                self._keep(suite, name, files[-1], Found(caught=None, cpu_s=run.cpu_s[files[-1]], limit_s=self.cpu_s))
            elif self._passes(suite, run.failed):
                file = file_of(run.failed)
                self._keep(suite, name, file, Found(caught=run.failed, cpu_s=run.cpu_s.get(file, 0.0)))
            elif run.failed in failing or "::" not in run.failed:  # cannot be deselected
                tests.remove(file_of(run.failed))
            else:
                failing.add(run.failed)
        return None

    def _keep(self, suite: Suite, name: str, test: str, found: Found) -> None:
        self.results.add(name, suite.imports.key_of(test), found=found)

    def _known(self, suite: Suite, name: str, test: str) -> Found | None:
        found = self.results.get(name, suite.imports.key_of(test))
        if found and not found["caught"] and found.get("limit_s", self.cpu_s) < self.cpu_s:
            return None
        return found

    def _passes(self, suite: Suite, test: str) -> bool:
        """Whether a test passes without a mutation."""
        of = ("unchanged", test, suite.imports.key_of(file_of(test)))
        if (known := self.results.get(*of)) is None:
            known = Found(passes=suite.run([test], self.cpu_s * 10, self.hang_s * 2).finished)
            self.results.add(*of, found=known)
        return known["passes"]


def file_of(test: str) -> str:
    return test.partition("::")[0]
