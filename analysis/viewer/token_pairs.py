"""Engine and trainer: the log-probabilities of both for some tokens of a step, as `ng_train` records them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from pydantic import Field, ValidationError

from rollyard.analysis.charts.charts import Bar, Chart, Pair, chart, histogram, scatter, table
from rollyard.analysis.charts.svg import Axis, share, short, signed
from rollyard.analysis.viewer.library import UnknownRun
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.run_file import RowChanged, RunFile, row_of
from rollyard.analysis.viewer.token_texts import TokenDecoder
from rollyard.analysis.viewer.training import TrainingIndex, rollouts_number
from rollyard.analysis.viewer.untrusted_values import sanitize
from rollyard.records.errors import RunError
from rollyard.records.terminal import pluralize
from rollyard.records.tokens import is_from_model, model_call
from rollyard.records.types import Record, items, mapping, number, whole_number

_ENGINE, _TRAINER = Axis("engine's log-probability"), Axis("trainer's log-probability")
_TOKENS = Axis("tokens (logarithmic)", integers=True, log10=True)
_SAME = 1e-4
"""Trainers store log-probabilities in single precision."""
_BEFORE, _AFTER = 40, 20


_Whole = Annotated[int, Field(strict=True)]
_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class ViewedTokenPair(Record):
    """A token with a loss."""

    task: _Whole
    repeat: _Whole
    index: _Whole = Field(exclude=True)
    """Index in its training sequence, prompt included."""
    id: _Whole
    engine: _Finite
    trainer: _Finite
    entropy: _Finite | None = None
    clipped: bool = False


class LargeDifference(ViewedTokenPair):
    run: int
    """Number of the step's rollout file."""
    call: int | None = None
    """Index of the model call; None if the row does not contain the token, or has not been read."""
    position: int | None = None
    text: str = ""
    """Empty if texts are not recorded."""
    before: str = ""
    after: str = ""


class Mismatch(Record):
    """GET /api/training/mismatch?step=: engine and trainer before an update. Without `step`, that of the last one."""

    steps: list[int]
    step: int | None
    tokens: int
    """Number of tokens with a loss in the update."""
    clipped: int
    charts: list[Chart]
    largest: list[LargeDifference]
    not_finite: int
    """Number of recorded tokens that are left out because the log-probability of engine or trainer is not a number."""
    problem: str
    """Why the step's file cannot be read, in one sentence; empty if it can."""
    pending: bool
    """Whether the rollout file is still being read, so that tokens may lack their places."""


def pair_router(index: TrainingIndex, decoder: TokenDecoder | None = None) -> APIRouter:
    router = APIRouter(prefix="/api/training")

    @router.get("/mismatch")
    async def mismatch(step: Annotated[int | None, Query(ge=0)] = None) -> Response:
        return await json_response(lambda: _mismatch(index, step, decoder))

    return router


def _mismatch(index: TrainingIndex, step: int | None, decoder: TokenDecoder | None) -> Mismatch:
    files = index.folder.token_pairs()
    chosen = max(files, default=None) if step is None else step
    found, problem, run, largest = PairFile(), "", None, list[LargeDifference]()
    if chosen is not None:
        if chosen not in files:
            raise HTTPException(
                404, f"step {chosen} has no file of log-probabilities; {len(files)} other steps have one"
            )
        try:
            found = read_pairs(files[chosen])
        except RunError as error:  # the page still offers the other steps
            problem = sanitize(str(error))
        number = rollouts_number(chosen)
        with suppress(UnknownRun):
            run = index.find(number)
        for pair in found.largest:
            place = _place(pair, run, decoder)
            largest.append(LargeDifference(run=number, **dict(pair), **(asdict(place) if place else {})))
    return Mismatch(
        steps=list(files),
        step=chosen,
        tokens=found.tokens,
        clipped=found.clipped,
        charts=pair_charts(found),
        largest=largest,
        not_finite=found.not_finite,
        problem=problem,
        pending=run is not None and run.unread_bytes > 0,
    )


def _place(pair: ViewedTokenPair, run: RunFile | None, decoder: TokenDecoder | None) -> TokenPlace | None:
    if run is None:
        return None
    table = run.table
    if (at := table.find(pair.task, pair.repeat)) is None:
        return None
    try:
        row = row_of(run, table, at)
    except (OSError, RowChanged):
        return None
    return token_place(row, pair.index, pair.id, pair.engine, decoder) if row else None


def pair_charts(found: PairFile) -> list[Chart]:
    charts = []
    if found.sample:
        pairs = [*((pair, False) for pair in found.sample), *((pair, True) for pair in found.largest)]
        charts = [_against(found, pairs), _differences(pairs)]
    if sum(found.counts):
        charts.append(_ratios(found))
    return charts


def _against(found: PairFile, pairs: Sequence[tuple[ViewedTokenPair, bool]]) -> Chart:
    points = [Pair(pair.engine, pair.trainer, _tip(pair), marked) for pair, marked in pairs]
    caption = (
        f"{pluralize(len(found.sample), 'token')} chosen at random, and in the second colour the "
        f"{len(found.largest)} with the largest differences. On the line, both agree."
    )
    if found.not_finite:
        caption += f" {pluralize(found.not_finite, 'token')} without a finite log-probability cannot be drawn."
    svg = scatter(f"Engine against trainer. {caption}", points, _ENGINE, _TRAINER, diagonal=True)
    return chart("engine_trainer", "Engine against trainer", svg, caption)


def _differences(pairs: Sequence[tuple[ViewedTokenPair, bool]]) -> Chart:
    points = [Pair(pair.engine, pair.trainer - pair.engine, _tip(pair), marked) for pair, marked in pairs]
    caption = "Trainer minus engine: do unlikely tokens differ more?"
    svg = scatter(f"Difference. {caption}", points, _ENGINE, Axis("difference in nats"))
    return chart("difference", "Difference", svg, caption)


def _ratios(found: PairFile) -> Chart:
    """Draw the histogram of all tokens of the update. Its bins are not equally wide, so that each has a number."""
    edges, total = found.edges, sum(found.counts)
    names = [
        f"below {signed(edges[0])}",
        *(f"{signed(low)} to {signed(high)}" for low, high in pairwise(edges)),
        f"above {signed(edges[-1])}",
    ]
    bars, rows = [], []
    for index, (name, count) in enumerate(zip(names, found.counts, strict=True)):
        height = max(math.log10(count), 0.06) if count else 0.0
        bars.append(Bar(index, index + 1, height, f"log-ratio {name}: {pluralize(count, 'token')}"))
        rows.append(([name, f"{count:,}", share(count / total, 2)], None))

    def edge(number: int) -> str:
        return signed(edges[number - 1]) if 1 <= number <= len(edges) else ""

    middle = len(edges) // 2
    inside = found.counts[middle]
    caption = (
        f"{share(inside / total, 1)} of {pluralize(total, 'token')} differ by less than {short(edges[middle])} nats; "
        f"{share(found.clipped / total, 2)} are clipped. Ratios are the trainer's probability to the engine's."
    )
    ticks = [float(number) for number in range(1, len(edges) + 1)]
    svg = histogram(f"Log-ratios. {caption}", bars, Axis("log-ratio", names=edge), _TOKENS, ticks)
    return chart("log_ratios", "Log-ratios", svg, caption, table(["log-ratio", "tokens", "share"], rows))


def _tip(pair: ViewedTokenPair) -> str:
    both = f"engine {short(pair.engine)}, trainer {short(pair.trainer)}"
    return f"id {pair.id}: {both}, difference {signed(pair.trainer - pair.engine)}{', clipped' if pair.clipped else ''}"


@dataclass(frozen=True)
class PairFile:
    tokens: int = 0
    clipped: int = 0
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """Number of tokens by log-ratio, with one number more than `edges`; empty if they do not fit together."""
    sample: tuple[ViewedTokenPair, ...] = ()
    largest: tuple[ViewedTokenPair, ...] = ()
    not_finite: int = 0


def read_pairs(path: Path) -> PairFile:
    """Read the file of a step. Raises RunError, which names the file and the problem in one sentence."""
    name = f"{path.parent.name}/{path.name}"
    try:
        record = orjson.loads(path.read_bytes())
    except OSError as error:
        raise RunError(f"{name} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise RunError(f"{name} is not valid JSON ({error}); expected a file of ng_train") from error
    if not isinstance(record, dict):
        raise RunError(f"{name} contains no JSON object; expected a file of ng_train")
    edges = tuple(edge for value in items(record.get("log_ratio_edges")) if (edge := number(value, None)) is not None)
    found = items(record.get("log_ratio_counts"))
    counts = tuple(count for value in found if (count := whole_number(value, least=0)) is not None)
    (sample, lacking), (largest, others) = (_pairs(record.get(name)) for name in ("sample", "largest"))
    return PairFile(
        tokens=whole_number(record.get("tokens"), least=0) or 0,
        clipped=whole_number(record.get("clipped"), least=0) or 0,
        edges=edges,
        counts=counts if edges and len(counts) == len(edges) + 1 else (),
        sample=sample,
        largest=largest,
        not_finite=len(lacking | others),
    )


def _pairs(values: Any) -> tuple[tuple[ViewedTokenPair, ...], set[tuple[int, ...]]]:
    """Return the pairs, and which tokens have none because a log-probability is not a finite number."""
    found, lacking = list[ViewedTokenPair](), set[tuple[int, ...]]()
    for value in map(mapping, items(values)):
        try:
            found.append(
                ViewedTokenPair(**{name: value[name] for name in ViewedTokenPair.model_fields if name in value})
            )
        except ValidationError:
            key = [whole_number(value.get(name)) for name in ("task", "repeat", "index", "id")]
            if None not in key:
                lacking.add(tuple(one for one in key if one is not None))
    return tuple(found), lacking


@dataclass(frozen=True)
class TokenPlace:
    """A token in its model call, with the text around it if it is recorded."""

    call: int
    position: int
    text: str = ""
    before: str = ""
    after: str = ""


def token_place(
    row: Mapping[str, Any], index: int, token: int, log_prob: float, decoder: TokenDecoder | None = None
) -> TokenPlace | None:
    """Return the place of the generated token at `index` of a sequence, prompt included; None if the row has none.

    Several sequences of an episode may have a token at the same index, so that its log-probability has to match, too.
    """
    call = 0
    for item in items(mapping(row.get("response")).get("output")):
        if not is_from_model(item) or (found := model_call(item)) is None:
            continue
        position = index - len(items(item.get("prompt_token_ids")))
        matches = 0 <= position < min(len(found.ids), len(found.log_probs)) and found.ids[position] == token
        if matches and abs(found.log_probs[position] - log_prob) < _SAME:
            texts = found.texts or (decoder.texts(found.ids) if decoder else [])
            before, after = "".join(texts[:position]), "".join(texts[position + 1 :])
            text = texts[position] if texts else ""
            return TokenPlace(call, position, *map(sanitize, (text, before[-_BEFORE:], after[:_AFTER])))
        call += 1
    return None
