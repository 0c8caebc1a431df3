"""RolloutFunc: the `rollout_func` and the reward of a plain GRPOTrainer of TRL, played on a running stack."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.datasets.rows import agent_of
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.datasets.tasks import Rollout
from rollyard.training.trl.episodes import Episodes, PlaySettings
from rollyard.training.trl.stack_session import StackSession
from rollyard.training.trl.trl_columns import ENDING, REWARD, RowRules, SeveralSequences, trl_columns
from rollyard.training.versions import version_of_step

Prompt = str | Sequence[Mapping[str, Any]]


class RolloutFunc:
    """Plays each prompt as an episode through `POST /run`. Pass the object as `rollout_func`, and its `reward` as the
    reward function.
    """

    def __init__(
        self,
        session: StackSession,
        folder: Path,
        *,
        agent: str | None = None,
        settings: PlaySettings | None = None,
        several_sequences: SeveralSequences = "mask",
        max_seq_len: int | None = None,
    ) -> None:
        """`folder`: where the rollouts are stored, one file per call. `agent`: the agent of prompts without an
        agent_ref; default: the only one of the stack. `several_sequences`, `max_seq_len`: see RowRules.

        Raises OperatorError if the settings ask for importance weights, which GRPOTrainer does not have.
        """
        self._settings = settings or PlaySettings()
        if self._settings.sequences.constrained_turns == "reweight":
            raise OperatorError("constrained_turns=reweight needs importance weights: GRPOTrainer has none. Use mask")
        self._session = session
        self._folder = folder
        self._agent = session.agent(agent)
        self._several_sequences: SeveralSequences = several_sequences
        self._max_seq_len = max_seq_len

    def __call__(self, prompts: list[Prompt], trainer: Any) -> dict[str, list[Any]]:
        """Return TRL's columns for these prompts, which repeat those of each group.

        Rollouts are sampled at the temperature of the trainer. Raises RunError as Episodes.play and trl_columns do.
        """
        rollouts = list(rollouts_of(prompts, self._agent))
        temperature = float(trainer.args.temperature)
        with self._file(trainer).open("ab") as file:

            def record(line: bytes) -> None:
                file.write(line + b"\n")

            members = self._session.run(self._play(rollouts, {"temperature": temperature}, record))
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        rules = RowRules(tokenizer.eos_token_id, temperature, self._several_sequences, self._max_seq_len)
        return trl_columns(members, rules)

    def reward(self, *, log_metric: Callable[[str, float], None] | None = None, **columns: Any) -> list[float | None]:
        """Return the rewards of the latest rollouts, None for those that are left out."""
        rewards: list[float] = columns[REWARD]
        left_out = [math.isnan(reward) for reward in rewards]
        if log_metric is not None:
            log_metric("rollouts/left_out", sum(left_out) / len(left_out))
            for ending in sorted(set(columns[ENDING])):
                log_metric(f"rollouts/ending/{ending}", columns[ENDING].count(ending) / len(rewards))
        return [None if missing else reward for reward, missing in zip(rewards, left_out, strict=True)]

    async def _play(
        self, rollouts: Sequence[Rollout], params: Mapping[str, Any], record: Callable[[bytes], None]
    ) -> list[Any]:
        return await Episodes(self._session.stack, self._settings, record).play_all(rollouts, params)

    def _file(self, trainer: Any) -> Path:
        accelerator = trainer.accelerator
        part = f"_process_{accelerator.process_index}" if accelerator.num_processes > 1 else ""
        kind = "" if trainer.model.training else "eval_"
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{kind}{version_of_step(trainer.state.global_step + 1)}{part}"
        for number in itertools.count(1):
            path = self._folder / (f"{name}.jsonl" if number == 1 else f"{name}_{number}.jsonl")
            if not path.exists():
                return path
        raise AssertionError("count() does not end")


def rollouts_of(prompts: Sequence[Prompt], agent: str) -> Iterator[Rollout]:
    """Yield a rollout for each prompt. Equal prompts in a row are repeats of one task.

    Raises OperatorError if a prompt is neither a task of `task_prompts` nor a list of messages.
    """
    for index, (prompt, repeats) in enumerate(itertools.groupby(prompts)):
        row = _row(prompt)
        for repeat, _ in enumerate(repeats):
            yield Rollout(index, repeat, agent_of(row) or agent, row)


def task_prompts(path: str | Path, limit: int | None = None) -> Any:
    """Return the rows of a dataset file as a `train_dataset`. Its prompts are the rows as JSON, because TRL passes
    nothing but the prompt to a `rollout_func`.
    """
    from datasets import Dataset

    with Path(path).open("rb") as file:
        rows = [line.strip().decode() for line in itertools.islice(filter(bytes.strip, file), limit)]
    return Dataset.from_dict({"prompt": rows})


def _row(prompt: Prompt) -> Json:
    if not isinstance(prompt, str):
        return {"responses_create_params": {"input": list(prompt)}}
    try:
        row = orjson.loads(prompt)
    except orjson.JSONDecodeError:
        row = None
    if not isinstance(row, dict) or not isinstance(row.get("responses_create_params"), dict):
        raise OperatorError(
            f"the prompt {prompt[:60]!r} is not a task: make the dataset with task_prompts(FILE), or use lists of "
            "messages as prompts"
        )
    return row
