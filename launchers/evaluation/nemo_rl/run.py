"""NemoRlRun: an evaluation that is defined by a config file of NeMo-RL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.nemo_rl.config import SECTIONS, NemoRlConfig, is_nemo_rl, load_tree, parse
from rollyard.launchers.evaluation.nemo_rl.datasets import prepare_rows
from rollyard.launchers.evaluation.nemo_rl.eval_config import to_eval_config
from rollyard.launchers.evaluation.nemo_rl.results import save, summary
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.overrides import Override, apply
from rollyard.services.config.yaml_files import describe_error

DEFAULT_OUTPUT = Path("results/eval")
ROWS = "rows.jsonl"


@dataclass(frozen=True)
class NemoRlRun:
    config: NemoRlConfig
    eval_config: EvalConfig
    tree: Json
    """The contents of the file after the overrides; `ng_eval` reads them again as the same evaluation."""

    def prepare(self) -> list[str]:
        """Write the dataset's rows, unless they are there. Returns notes; raises OperatorError or RunError."""
        prepare_rows(self.config.data, self.eval_config.output_dir / ROWS)
        return self.notes()

    @contextmanager
    def prepared_elsewhere(self) -> Iterator[EvalConfig]:
        """Prepare the rows in a temporary folder and yield the evaluation of them. Writes nothing to `output_dir`."""
        with tempfile.TemporaryDirectory(prefix="ng-eval-rows-") as folder:
            rows = prepare_rows(self.config.data, Path(folder) / ROWS)
            yield self.eval_config.model_copy(update={"input_jsonl_fpath": str(rows)})

    def notes(self) -> list[str]:
        unused = ", ".join(self.config.unused)
        return [f"no effect here: {unused}"] if unused else []

    def finish(self, rollouts: Path) -> str:
        """Write the results in NeMo-RL's formats; return the block with the score. Raises RunError."""
        written = save(self.config, rollouts)
        return "\n".join([summary(self.config, rollouts), *(f"wrote {path}" for path in written)])


def read_nemo_rl(path: Path, overrides: Iterable[Override], servers: Iterable[str] = ()) -> NemoRlRun | None:
    """Return the evaluation in a config file, or None if it is not one of NeMo-RL.

    Keys of `ng_eval`, such as output_dir and worker, may appear next to NeMo-RL's sections. References are resolved
    after the overrides. `servers` are overrides of the servers' settings. Raises OperatorError if the config is
    invalid.
    """
    tree = load_tree(path)
    if not is_nemo_rl(tree):
        return None
    apply(tree, overrides)
    names = [str(key) for key in tree if key in EvalConfig.model_fields and key not in SECTIONS]
    try:
        given = {key: _resolved(tree, key) for key in names}
    except OmegaConfBaseException as error:
        raise OperatorError(f"{path}: {describe_error(error)}") from error
    given["overrides"] = (*(given.get("overrides") or ()), *servers)
    for key in names:
        del tree[key]
    config = parse(tree, str(path))
    output = Path(given.pop("output_dir", None) or config.eval.save_path or DEFAULT_OUTPUT)
    sections = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(sections, dict)
    resolved = {**{str(key): value for key, value in sections.items()}, **given, "output_dir": str(output)}
    resolved["overrides"] = list(given["overrides"])
    return NemoRlRun(config, to_eval_config(config, rows_of(config, output), output, **given), resolved)


def _resolved(tree: DictConfig, key: str) -> Any:
    value = tree[key]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def rows_of(config: NemoRlConfig, output: Path) -> Path:
    """Return the path of the prepared rows, which may not exist yet."""
    name = Path(config.data.dataset_name)
    return name.resolve() if name.is_file() else output / ROWS
