"""Decides what counts as a score: which rewards are valid, and which rows are measured.

A reward must be finite and at most `MAX_REWARD` in magnitude. Rollyard's own environments declare this bound as a field
constraint (records/types.py). Further fields of a verdict, such as the expected answer, are declared in the row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

import orjson
from pydantic import ConfigDict, Field, ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rollout_types import TurnSteps
from rollyard.records.types import MAX_REWARD, Json, Record, is_number, is_recorded, items, mapping

VERDICT_FIELDS = "_ng_verdict_fields"
MAX_FIELDS = 32
Role = Literal["expected", "extracted", "outcome", "reason", "tests", "component", "limit"]
ROLES: tuple[Role, ...] = get_args(Role)


class VerdictField(Record):
    """A field of the row that explains the reward, such as `VerdictField(path="reason", role="reason")`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: str = Field(max_length=200, pattern=r"^[^\W\d]\w*(\.\w+)*$")
    """The field's name in the row; `scores.format` is a key of an object."""
    role: Role
    """`expected`: the gold answer. `extracted`: the answer that was found. `outcome`: what came of a game or another
    episode without an answer, such as its moves, or the best that could have come; shown under its label alone.
    `reason`: why the verdict is what it is. `tests`: how many checks passed, or which. `component`: a part of the
    reward, or an object of parts by name. `limit`: whether a limit of the environment was hit, or which."""
    label: str = Field(default="", max_length=60)
    """The field's name in the viewer; default: the last name of the path, with spaces."""
    exact: bool = True
    """Only for `expected`: whether the extracted answer of a solved task equals it. False for anything else that was
    asked for, such as instructions."""

    @property
    def shown_label(self) -> str:
        return self.label or self.path.rpartition(".")[2].replace("_", " ").strip() or self.path

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.path.split("."))

    def is_in(self, row: Mapping[str, Any]) -> bool:
        """Return whether the row has the field, possibly with the value None."""
        *outer, last = self.keys
        found: Any = row
        for key in outer:
            found = found.get(key) if isinstance(found, Mapping) else None
        return isinstance(found, Mapping) and last in found

    def value(self, row: Mapping[str, Any]) -> Any:
        """Return the value in a row; None if there is none."""
        if "." not in self.path:  # most fields; a list of rollouts looks up dozens of names in each row
            return row.get(self.path)
        found: Any = row
        for key in self.keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found


def _known(role: Role, *paths: str) -> tuple[VerdictField, ...]:
    return tuple(VerdictField(path=path, role=role) for path in paths)


_FIRST_OF: tuple[tuple[VerdictField, ...], ...] = (
    _known(
        "expected",
        *("expected_answer", "gold_answer", "gold", "ground_truth", "reference_answer", "target"),
        *("correct_answer", "verifier_metadata.expected_answer"),
        *("verifier_metadata.ground_truth", "verifier_metadata.answer", "answer"),
    ),
    _known(
        "extracted",
        *("extracted_answer", "predicted_answer", "model_answer", "parsed_answer", "prediction"),
        *("extracted_code", "extracted_model_code"),
    ),
    _known("reason", "reason", "explanation", "rationale", "error_message"),
    _known("tests", "tests_passed", "num_passed", "passed_tests", "follow_instruction_list", "unit_tests_passed"),
    _known("tests", "num_tests", "total_tests", "unit_tests_total"),
    _known("component", "reward_components", "scores", "rewards"),
)
"""Common names, the usual ones first. Of each group, the first name that a row contains counts."""
_EACH = (
    *_known("outcome", "moves", "optimal_moves", "boxes_on_target"),
    *_known("component", "library_reward", "judge_score", "format_reward", "shaping_reward", "penalty"),
    *_known("limit", "truncated", "timed_out", "scoring_timed_out", "openenv_timed_out", "gym_truncated", "ending"),
)
"""Common names that all count."""


def fields_of(row: Mapping[str, Any], roles: Collection[Role] = ROLES) -> tuple[VerdictField, ...]:
    """Return the fields with these roles that the row declares, or else those with common names, in the order of their
    roles. Common names are looked for only if the row declares nothing at all.
    """
    declared = _declared(row.get(VERDICT_FIELDS))
    return tuple(field for field in declared if field.role in roles) if declared else recognised_fields(row, roles)


def recognised_fields(row: Mapping[str, Any], roles: Collection[Role] = ROLES) -> tuple[VerdictField, ...]:
    """Return the fields with common names that the row contains, in the order of their roles."""
    found = [
        next((field for field in group if field.value(row) is not None), None)
        or next((field for field in group if field.path in row), None)
        for group in _FIRST_OF
        if group[0].role in roles
    ]
    each = (field for field in _EACH if field.role in roles and field.value(row) is not None)
    chosen = [*filter(None, found), *each]
    if "tests" in roles and "tests_passed" in row and isinstance(row.get("tests"), int):  # often a list of code
        chosen.append(VerdictField(path="tests", role="tests"))
    return tuple(sorted(chosen, key=lambda field: ROLES.index(field.role)))


def declaration(fields: tuple[VerdictField, ...]) -> Json:
    """Return what a row contains of the fields; empty if there are none."""
    return {VERDICT_FIELDS: [field.model_dump(exclude_defaults=True) for field in fields]} if fields else {}


def _declared(value: object) -> tuple[VerdictField, ...]:
    """Return the valid fields of a declaration. Others are ignored: the row may come from another program."""
    found: list[VerdictField] = []
    for each in value[:MAX_FIELDS] if isinstance(value, list) else ():
        try:
            found.append(VerdictField.model_validate(each))
        except ValidationError:
            continue
    return tuple(sorted(found, key=lambda field: ROLES.index(field.role)))


MASKED = "masked"
"""Kind of a row that was masked without a reason."""
_FLAGS = ("mask_sample", "judge_failsafe", "_ng_no_persist")
_KINDS = ("failure_kind", "_ng_failure_class")
MASK_KEYS = (*_FLAGS, *_KINDS, "instance_config")
"""Keys by which a server of any framework says that a row's reward is no measurement, whatever its value."""
_MASK = re.compile("|".join(f'"{name}"' for name in MASK_KEYS).encode())
RENAMED = "_ng_renamed"
"""Key of a row whose task and verdict have keys in common: maps each of them to the key that was used instead."""
SCORES = frozenset({"reward", "success", "extracted_answer", "reward_components", "parse_error"})
"""Keys whose values are counted. Only a verdict sets them."""
_VERDICTS_OWN = frozenset({"responses_create_params", "response", "agent_ref", "token_trail", *MASK_KEYS})
"""Other keys that a verdict may set although the row has them, because servers of other frameworks echo the row."""
_OF_VERDICTS = SCORES.union(MASK_KEYS)
EXPECTED = f"expected a finite number of at most {MAX_REWARD:g}"


def is_reward(value: Any) -> bool:
    """Return whether `value` is a finite number of at most `MAX_REWARD` in magnitude. JSON's true is not a number."""
    return is_number(value, MAX_REWARD)


def tidy(value: Any) -> Any:
    """Return a sum of decimal fractions as such: 0.7 for 0.7000000000000002. Any other number is returned unchanged."""
    if not isinstance(value, float):
        return value
    rounded = round(value, 9) + 0.0
    noise = max(1e-12, 1e-14 * abs(value)) if rounded else 1e-14
    return rounded if abs(rounded - value) <= noise else value


def check_reward(answer: Json, endpoint: str, server: str) -> None:
    """Raise Failure malformed_answer, attributed to `server`, unless the reward in `answer` is a finite number."""
    reward = answer.get("reward")
    if not is_reward(reward):
        detail = f"{endpoint} returned reward {reward!r:.100}; {EXPECTED}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)


def mask_of(row: Mapping[str, Any]) -> str:
    """Return why the row's reward is no measurement, as a failure kind; empty if the row is not masked."""
    if row.keys().isdisjoint(MASK_KEYS):
        return ""
    config = row.get("instance_config")
    flagged = any(row.get(name) for name in _FLAGS)
    if flagged or (isinstance(config, dict) and config.get("mask_sample")):
        return MASKED
    # Servers of NeMo Gym 0.7 always say whether they mask; a kind beside `false` only says what they noticed.
    kinds = _KINDS[1:] if row.get("mask_sample") is False else _KINDS
    found = next((kind for name in kinds if (kind := row.get(name))), "")
    return found if isinstance(found, str) else MASKED


def is_masked_line(line: bytes) -> bool:
    """Return whether the row on this line of a rollout file is masked. Parses only lines that may be."""
    if not _MASK.search(line):
        return False
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and bool(mask_of(row))


def is_measured(row: Mapping[str, Any]) -> bool:
    """Return whether the row is a measured rollout: it has a valid reward, and nothing in it says that this is none.

    Every count, mean and training step uses this rule, for rows of this stack and of others.
    """
    return is_reward(row.get("reward")) and not mask_of(row)


def with_verdict(row: Mapping[str, Any], played: Mapping[str, Any], verdict: Mapping[str, Any]) -> Json:
    """Return the result of an episode: `played`, which is the task's `row` with what was played, and the verdict.

    A value of the row is never replaced by the verdict's: that one is stored as `verdict_<key>`. Nor does a value of
    the row count as a score: it is stored as `row_<key>`. If the row itself is a finished rollout, its old verdict is
    replaced. Whether the reward is masked, only the verdict says.
    """
    if row.keys().isdisjoint(verdict) and row.keys().isdisjoint(_OF_VERDICTS):
        return {**played, **verdict}
    is_finished = "reward" in row and isinstance(row.get("response"), dict)
    known = row.get(RENAMED)
    renamed: dict[str, str] = dict(known) if is_finished and isinstance(known, dict) else {}
    merged = dict(played)
    for name in (*_FLAGS, *_KINDS):
        merged.pop(name, None)
    if isinstance(config := merged.get("instance_config"), dict):
        merged["instance_config"] = {key: config[key] for key in config if key not in ("mask_sample", "mask_reason")}
    for name in sorted(SCORES & row.keys()):
        value = merged.pop(name, None)
        if not is_finished:
            renamed[name] = _free(f"row_{name}", row, verdict)
            merged[renamed[name]] = value
    for name, value in verdict.items():
        if name == "mask_sample" and name in row and not value and not is_finished:
            continue  # perhaps an echo of the task, which must not make a failure a measurement
        if name in renamed and name != "reward" and "response" in verdict and row.get(name) == value:
            continue  # a server of another framework echoes the row
        keeps = name in row and name not in SCORES and name not in _VERDICTS_OWN and not name.startswith("_ng_")
        if keeps and not is_finished and row[name] != value:
            renamed[name] = _free(f"verdict_{name}", row, verdict)
        replaces = name in SCORES or name not in renamed
        merged[name if replaces else renamed[name]] = value
    if renamed:
        merged[RENAMED] = renamed
        if isinstance(declared := merged.get(VERDICT_FIELDS), list):
            merged[VERDICT_FIELDS] = [_moved(field, renamed) for field in declared]
    return merged


_RESULTS = frozenset(
    {
        *("response", "reward", "success", "finish_reason", "truncated", "timings", "token_trail", "mask_sample"),
        VERDICT_FIELDS,
    }
)


def task_of(row: Mapping[str, Any]) -> Json:
    """Return the task of a rollout as a dataset row, with the prompt and the tools that the model got.

    From the rows of other programs, only the known results are removed.
    """
    task = recorded_task(row)
    if task is not None:
        return task
    return {name: value for name, value in row.items() if name not in _RESULTS and not name.startswith("_ng_")}


def recorded_task(row: Mapping[str, Any]) -> Json | None:
    """Return the task of a rollout; None if the order of the keys does not show it, as in rows of other programs.

    Rollyard's rows begin with the fields of the dataset row, up to `_ng_task_index`.
    """
    names = list(row)
    first = names[: names.index("_ng_task_index")] if "_ng_task_index" in names else []
    if not {"responses_create_params", "agent_ref"} <= set(first) or {"response", "reward", "success"} & set(first):
        return None
    renamed = mapping(row.get(RENAMED))
    own = {name: row[new] for name, new in renamed.items() if str(new).startswith("row_") and new in row}
    return {**{name: row[name] for name in first}, **own}


OLD_VERDICT = "_ng_old_verdict"
"""Key of a row that `ng_regrade` wrote: the verdict that the stored answer had before, with the names it had."""


def verdict_of(row: Mapping[str, Any]) -> Json:
    """Return the verdict in a rollout: its reward, and what explains or masks it. Of a row whose task is not known
    (`recorded_task`), only the declared fields and those with well-known names.
    """
    task = recorded_task(row)
    if task is not None:
        return {name: row[name] for name in row if not (name in task or name in _STEPS or is_recorded(name))}
    declared = {str(mapping(field).get("path")).partition(".")[0] for field in items(row.get(VERDICT_FIELDS))}
    return {name: row[name] for name in row if name in SCORES or name in MASK_KEYS or name in declared}


_STEPS = frozenset(TurnSteps.__annotations__)


def _moved(field: Any, renamed: Mapping[str, str]) -> Any:
    """Return the declaration of a verdict's field with the name under which the row has it."""
    path = field.get("path") if isinstance(field, dict) else None
    top, dot, rest = path.partition(".") if isinstance(path, str) else ("", "", "")
    name = renamed.get(top, top)
    return field if name == top or top in SCORES else {**field, "path": f"{name}{dot}{rest}"}


def _free(name: str, row: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    while name in row or name in verdict:
        name += "_"
    return name
