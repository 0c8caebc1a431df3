"""The data of a training config of rlvr-experiments, as a mixture of this project's environments."""

from __future__ import annotations

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json

ENVIRONMENTS = {
    "gsm8k": "gsm8k",
    "math": "math",
    "humaneval": "humaneval",
    "mbpp": "mbpp",
    "ifeval": "ifeval",
    "if_multi_constraints": "ifeval",
}
"""Dataset of rlvr-experiments -> environment."""
_DATASET_KEYS = ("name", "split", "weight", "count", "order", "path")


def environments_of(data: Json) -> list[str]:
    """Return the environments of the datasets. Raises OperatorError for datasets without one."""
    return list(dict.fromkeys(_environment(str(entry.get("name"))) for entry in _entries(data)))


def mixture_of(data: Json, seed: int) -> Json:
    """Return the `data` of a TrainConfig. Its rows are in files that `prepare` of each environment writes."""
    return {
        "mode": data.get("mode", "weighted"),
        "seed": data.get("seed", seed),
        "datasets": [_dataset(entry) for entry in _entries(data)],
    }


def _entries(data: Json) -> list[Json]:
    name = data.get("dataset")
    if name is None:
        raise OperatorError("data.dataset is missing; expected mixed, or the name of a dataset")
    if name != "mixed":
        return [{"name": name, **{key: value for key, value in data.items() if key != "dataset"}}]
    unknown = [key for key in data if key not in ("dataset", "mode", "seed", "datasets")]
    if unknown:
        raise OperatorError(f"data has the unknown keys {', '.join(unknown)}; expected mode, seed and datasets")
    entries: list[Json] = data.get("datasets") or []
    if not entries or not all(isinstance(entry, dict) and entry.get("name") for entry in entries):
        raise OperatorError("data.datasets: expected a list of datasets with a name each")
    return entries


def _environment(name: str) -> str:
    if name not in ENVIRONMENTS:
        raise OperatorError(f"dataset {name!r} has no environment here; expected one of {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[name]


def _dataset(entry: Json) -> Json:
    name = str(entry["name"])
    unknown = [key for key in entry if key not in _DATASET_KEYS]
    if unknown:
        raise OperatorError(
            f"dataset {name}: {', '.join(unknown)} cannot be passed to its loader; select rows when you prepare them, "
            "or use ng_train with `where`"
        )
    environment, split = _environment(name), entry.get("split", "train")
    found: Json = {key: entry[key] for key in _DATASET_KEYS if entry.get(key) is not None}
    if environment != name and "path" not in found:  # else the default, resources_servers/NAME/data/SPLIT.jsonl
        found["path"] = f"resources_servers/{environment}/data/{name}_{split}.jsonl"
    return {**found, "split": split, "agent_name": f"{environment}_agent"}
