"""RolloutFunc: the `rollout_func` and the reward of a plain GRPOTrainer of TRL, played on a running stack."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.rows import agent_of
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import Rollout
from rollyard.training.groups import GroupMember
from rollyard.training.run_folder import version_of_step
from rollyard.training.training_sequence import TrainingSequence, check_temperature, trl_rollouts
from rollyard.training.trl.episodes import Episodes, PlaySettings
from rollyard.training.trl.stack_session import StackSession

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

            async def play() -> list[GroupMember]:
                params = {"temperature": temperature}
                return await Episodes(self._session.stack, self._settings, record).play_all(rollouts, params)

            members = self._session.run(play())
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

    def _file(self, trainer: Any) -> Path:
        accelerator = trainer.accelerator
        part = f"_process_{accelerator.process_index}" if accelerator.num_processes > 1 else ""
        kind = "" if trainer.model.training else "eval_"
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{kind}{version_of_step(trainer.state.global_step + 1)}{part}"
        paths = (self._folder / f"{name}{'' if number == 1 else f'_{number}'}.jsonl" for number in itertools.count(1))
        return next(path for path in paths if not path.exists())


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


SeveralSequences = Literal["mask", "last", "refuse"]
REWARD, ENDING = "rollout_reward", "rollout_ending"


@dataclass(frozen=True, slots=True)
class RowRules:
    filler_id: int
    """Token of rows without a loss. TRL cannot represent an empty row."""
    temperature: float
    """The temperature at which the trainer computes log-probabilities."""
    several_sequences: SeveralSequences = "mask"
    """What to do with a rollout whose tokens are several sequences, of which a row holds one. `mask`: its reward counts
    in the group, its tokens have no loss. `last`: only the tokens of the last sequence have one. `refuse`: stop."""
    max_seq_len: int | None = None
    """Rollouts with more tokens have no loss."""


def trl_columns(members: Sequence[GroupMember], rules: RowRules) -> dict[str, list[Any]]:
    """Return TRL's columns, the reward and the ending of each rollout. One that is left out has the reward NaN: TRL
    then leaves it out of the group's mean and standard deviation, and sets its advantage to 0. Rows whose tokens have
    no loss hold one token with the mask 0.

    Raises RunError if no rollout can be trained on because all have several sequences or are too long, if one has and
    the rules refuse it, or if a rollout was sampled at another temperature.
    """
    refused: Counter[str] = Counter()
    chosen = [_sequence(member, rules, refused) for member in members]
    if refused and not any(chosen):
        reasons = ", ".join(f"{count} have {name}" for name, count in sorted(refused.items()))
        raise RunError(f"none of {len(members)} rollouts can be trained on ({reasons}). {_ADVICE}")
    filler = TrainingSequence([rules.filler_id], [rules.filler_id], [0], [0.0], [0], [None], rules.temperature)
    columns = trl_rollouts([sequence or filler for sequence in chosen])
    columns[REWARD] = [member.reward if member.counts else math.nan for member in members]
    columns[ENDING] = [member.ending for member in members]
    return columns


_ADVICE = (
    "GRPOTrainer takes one sequence per rollout. ng_train uses all sequences of a rollout; otherwise set "
    "several_sequences=last, or let the agent keep the history as it was sampled"
)


def _sequence(member: GroupMember, rules: RowRules, refused: Counter[str]) -> TrainingSequence | None:
    """Return the tokens of a rollout, or None if they have no loss. Counts why they have none in `refused`."""
    if not member.has_loss:
        return None
    sequence = member.sequences[-1]
    if len(member.sequences) > 1 and rules.several_sequences != "last":
        if rules.several_sequences == "refuse":
            raise RunError(f"the tokens of a rollout are {len(member.sequences)} sequences. {_ADVICE}")
        refused["several sequences"] += 1
        return None
    if rules.max_seq_len is not None and sequence.length > rules.max_seq_len:
        refused[f"more than {rules.max_seq_len} tokens"] += 1
        return None
    check_temperature(sequence, rules.temperature, "GRPOConfig only")
    return sequence if sequence.loss_tokens else None
