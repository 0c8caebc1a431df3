"""Mixture: several data sets as one, in an order that the seed and the epoch decide."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rollyard.services.datasets.data_files import DataFiles
from rollyard.services.datasets.dataset import Dataset
from rollyard.services.datasets.settings import DatasetSettings, MixtureSettings
from rollyard.services.datasets.tasks import Rollout
from rollyard.services.errors import OperatorError
from rollyard.services.types import Json

Place = tuple[Dataset, str]
"""A row: its data set and id."""
DRAWS = "one generator per data set"
"""How shuffled data sets draw their rows. Manifests without it are of the rule before: one generator for all sets."""


class Mixture:
    """Tasks of several data sets (see `services/datasets/tasks.py`). Every chosen row appears exactly once an epoch."""

    def __init__(
        self, settings: MixtureSettings, files: DataFiles, *, agent: str | None = None, limit: int | None = None
    ) -> None:
        """Reads every file once. `agent`: who plays rows for which nothing else says; `limit`: only the first tasks.

        Raises OperatorError.
        """
        self._settings = settings
        self._agent = agent
        self._limit = limit
        self.datasets = [Dataset(one, files) for one in settings.datasets]
        self.files = {dataset.file for dataset in self.datasets if isinstance(dataset.file, Path)}
        self._chosen = self._choose()
        self.count = 0
        self.agents: set[str] = set()
        digest = hashlib.sha256()
        for dataset in self.datasets:
            digest.update(dataset.digest.encode())
        for dataset, name in self.places():
            digest.update(f"{dataset.name}\0{name}\n".encode())
            self.agents.add(self._agent_of_row(dataset, name))
            self.count += 1
        self.digest = digest.hexdigest()

    @property
    def identity(self) -> Json:
        """The rule of the draws is on record: a collection whose rows were drawn by another one is refused by name."""
        drawn = {"draws": DRAWS} if any(map(_is_shuffled, self._settings.datasets)) else {}
        return {"input_sha256": self.digest, "rows": self.count, **drawn}

    def rollouts(self, repeats: int) -> Iterator[Rollout]:
        """Every task's repeats, in the epoch's order."""
        for index, (dataset, name) in enumerate(self.places()):
            row, agent = dataset.row(name), self._agent_of_row(dataset, name)
            for repeat in range(repeats):
                yield Rollout(index, repeat, agent, row)

    def rows(self) -> Iterator[Json]:
        """The rows in the epoch's order, ready to be written as a data set of their own."""
        for dataset, name in self.places():
            yield dataset.row(name)

    def places(self) -> Iterator[Place]:
        """Which row comes when."""
        return islice(self._order(), self._limit)

    @property
    def notes(self) -> list[str]:
        """What its user should know."""
        found: list[str] = []
        for settings, dataset, names in zip(self._settings.datasets, self.datasets, self._chosen, strict=True):
            about = f"data set {dataset.name!r}:"
            if settings.count is not None and settings.count > len(names):
                found.append(
                    f"{about} count is {settings.count:,}, but only {len(names):,} rows are there; all are used"
                )
            if dataset.unknown:
                found.append(
                    f"{about} {len(dataset.unknown)} ids of its order file are not in it and are left out "
                    f"(the first: {dataset.unknown[0]})"
                )
            if dataset.named_again:
                found.append(f"{about} {dataset.named_again} lines of its order file repeat an id and do not count")
        return found

    def _choose(self) -> list[list[str]]:
        """Ids of each data set as the first epoch has them; `count` cuts here, so that every epoch has the same."""
        chosen: list[list[str]] = []
        for settings, dataset, shuffler in zip(
            self._settings.datasets, self.datasets, self._shufflers(epoch=0), strict=True
        ):
            names = list(dataset.order or dataset.ids)
            if _is_shuffled(settings):
                shuffler.shuffle(names)
            chosen.append(names[: settings.count])
        return chosen

    def _shufflers(self, epoch: int) -> list[random.Random]:
        """One generator per data set, seeded by its name: no change of one set moves the rows of another.

        Sets that share a name are told apart by their number among those.
        """
        earlier = Counter[str]()
        shufflers: list[random.Random] = []
        for settings in self._settings.datasets:
            shufflers.append(random.Random(f"{self._settings.seed}/{epoch}/{earlier[settings.name]}/{settings.name}"))
            earlier[settings.name] += 1
        return shufflers

    def _order(self) -> Iterator[Place]:
        seed, epoch = self._settings.seed, self._settings.epoch
        chance = random.Random(f"{seed}/{epoch}")
        queues = [list(names) for names in self._chosen]
        if epoch:
            for settings, names, shuffler in zip(self._settings.datasets, queues, self._shufflers(epoch), strict=True):
                if _is_shuffled(settings):
                    shuffler.shuffle(names)
        if self._settings.mode == "sequential":
            for dataset, names in zip(self.datasets, queues, strict=True):
                yield from ((dataset, name) for name in names)
            return
        weights = [settings.weight for settings in self._settings.datasets]
        numbers, taken = range(len(queues)), [0] * len(queues)
        while any(weights):
            (at,) = chance.choices(numbers, weights)
            yield self.datasets[at], queues[at][taken[at]]
            taken[at] += 1
            if taken[at] == len(queues[at]):
                weights[at] = 0.0

    def _agent_of_row(self, dataset: Dataset, name: str) -> str:
        agent = dataset.agent(name) or self._agent
        if agent is None:
            raise OperatorError(
                f"data set {dataset.name!r} has rows without agent_ref: say who plays them with its agent_name, or "
                "with +agent_name=... for all"
            )
        return agent


def _is_shuffled(settings: DatasetSettings) -> bool:
    return settings.order is None and settings.shuffle
