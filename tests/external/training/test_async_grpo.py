"""TRL's AsyncGRPOTrainer gets rollouts and gives weights through our endpoints. The trainer itself needs CUDA."""

from __future__ import annotations

import inspect
import itertools
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoTokenizer

from rollyard.records.errors import Failure, FailureKind, RunError
from rollyard.records.types import Json
from rollyard.services.datasets.mixture import TaskFile
from rollyard.training.trl.episodes import PlaySettings
from rollyard.training.trl.rollout_worker import StackRolloutWorker, StackWeightTransfer
from rollyard.training.trl.stack_session import LoopThread, Publish
from rollyard.training.weight_publisher import PolicyClient, VersionFolders, WeightPublisher
from tests.external.training.scripted_agent import AT_ONCE, Agent, Answer, broken
from tests.external.training.tiny_policy import make_model, make_tokenizer
from tests.support.waiting import deadline_s, eventually
from tests.support.weight_engine import TOKEN, WeightEngine, trainer_server
from tests.unit.interop.scripted_session import ScriptedSession
from tests.unit.training.recorded_turns import row, turn

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", message="You are importing from 'trl.experimental'")
    warnings.filterwarnings("ignore", category=UserWarning, module="trl")
    from trl.experimental.async_grpo import async_grpo_trainer as trl_async

SIZE = 4


class Session(ScriptedSession):
    _publisher: WeightPublisher

    def publisher(self, folder: Path, *, timeout_s: float) -> Publish:
        def publish(version: str, save: Callable[[Path], None]) -> None:
            self.loop.run(self._publisher.publish(version, save))

        return publish


StartWorker = Callable[..., StackRolloutWorker]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    sessions: list[Session] = []
    workers: list[StackRolloutWorker] = []
    rows = tmp_path / "rows.jsonl"
    task: Json = {"responses_create_params": {"input": "Solve it."}}
    rows.write_bytes(b"\n".join(orjson.dumps({**task, "seed": seed}) for seed in range(2)))
    tasks = TaskFile(rows, agent="player", limit=None)

    def start(agent: Agent, **options: Any) -> StackRolloutWorker:
        sessions.append(session := Session(agent))
        given: Any = session
        settings = PlaySettings(pauses=AT_ONCE, max_failure_rate=1.0)
        options = {"group_size": SIZE, "temperature": 1.0, "settings": settings, "queue_size": 20, **options}
        workers.append(worker := StackRolloutWorker(given, tasks, tmp_path / "rollouts", **options))
        worker.start()
        return worker

    yield start
    for worker in workers:
        worker.stop()
    for session in sessions:
        session.close()


def version(number: int) -> Json:
    return {"policy_version": f"step_{number:06d}"}


async def play(request: Json, attempt: int) -> Json:
    """The reward is the number of the repeat; the last one fails; the second has two sequences and two versions."""
    repeat = request["_ng_rollout_index"]
    if repeat == SIZE - 1:
        raise Failure(FailureKind.SERVER_ERROR, "it did not work", server="environment")
    second = turn([1, 2, 3, 4], [5], **version(7)) if repeat != 1 else turn([8, 9], [6], **version(5))
    return row(turn([1, 2], [3, 4], **version(7)), second, reward=float(repeat))


def dataset(worker: StackRolloutWorker, now: int, **options: Any) -> tuple[Any, dict[str, list[float]]]:
    PartialState()  # TRL's loggers need it
    metrics: dict[str, list[float]] = defaultdict(list)
    found = trl_async.RolloutQueueDataset(
        worker.rollout_buffer, lambda: now, worker.check_health, deadline_s(), metrics, poll_interval_s=0.1, **options
    )
    return found, metrics


def test_trl_packs_the_samples_with_the_advantages_of_their_groups(start_worker: StartWorker) -> None:
    source, metrics = dataset(start_worker(Agent(play)), 8)
    batcher = trl_async.TokenBudgetBatcher(source, 1, 10, metrics)
    collator = trl_async.DataCollatorForRollout(pad_token_id=0, metrics=metrics)
    (rows,) = itertools.islice(batcher, 1)
    batch = collator([rows])
    samples = rows[0].samples
    ids = [[1, 2, 3, 4, 5], [1, 2, 3, 4], [8, 9, 6], [1, 2, 3, 4, 5]]
    assert [sample["input_ids"].tolist() for sample in samples] == ids
    # The mean of 0, 1, 2 is 1 and their standard deviation 1: the failed rollout does not count.
    expected = [-1 / 1.0001] * 3 + [0.0] * 3 + [1 / 1.0001] * 3
    assert batch["advantages"].flatten().tolist() == pytest.approx(expected)
    logged = [-0.3, -0.4, -0.5, -0.3, -0.4, -0.6, -0.3, -0.4, -0.5]
    assert batch["old_log_probs"].flatten().tolist() == pytest.approx(logged)
    assert len({sample["group_id"] for sample in samples}) == 1 and metrics["reward"] == [1.0]
    assert metrics["sample/staleness_max"][:3] == [1.0, 1.0, 3.0]


def test_trl_drops_samples_whose_oldest_token_is_too_old(start_worker: StartWorker) -> None:
    source, metrics = dataset(start_worker(Agent(play)), 8, max_staleness=1)
    found = [sample["input_ids"].tolist() for sample in itertools.islice(source, 6)]
    assert [8, 9, 6] not in found and found.count([1, 2, 3, 4]) == 2
    assert sum(metrics["sample/dropped_stale_total"]) >= 1


def test_tokens_without_a_version_have_the_one_at_the_start_of_their_group(start_worker: StartWorker) -> None:
    async def unversioned(request: Json, attempt: int) -> Json:
        return row(turn([1], [2], policy_version=None), reward=random.random())

    worker = start_worker(Agent(unversioned), queue_size=1)
    worker.update_model_version(3)
    eventually("a group of the new version", lambda: worker.rollout_buffer.get(timeout=deadline_s()).model_version == 3)


def test_groups_that_teach_nothing_are_counted_and_not_handed_over(start_worker: StartWorker) -> None:
    async def equal(request: Json, attempt: int) -> Json:
        return row(turn([1], [2]), reward=1.0)

    worker = start_worker(Agent(equal))
    figures = worker.metrics_queue.get(timeout=deadline_s())
    assert figures["rollout/skipped_groups_total"] == figures["rollout/zero_variance_groups_total"] == 1.0
    assert worker.rollout_buffer.empty()


def test_no_more_is_played_while_the_trainer_does_not_take_it(start_worker: StartWorker) -> None:
    agent = Agent(play)
    worker = start_worker(agent, settings=PlaySettings(pauses=AT_ONCE, max_failure_rate=1.0, parallel=4))
    eventually("the queue is full", lambda: worker.rollout_buffer.qsize() >= 20)
    eventually("nothing is in flight", lambda: len(agent.requests) == (before := len(agent.requests)) and before > 0)
    # 4 samples of each group: 5 groups fill the queue, and at most 2 more were in flight.
    assert worker.rollout_buffer.qsize() <= 28


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (broken(FailureKind.UNREACHABLE, "player"), "player"),
        (broken(FailureKind.SERVER_ERROR, "environment"), r"max_failure_rate=0\.5"),
    ],
)
def test_the_trainer_learns_that_the_worker_has_failed(answer: Answer, message: str, start_worker: StartWorker) -> None:
    source, _ = dataset(start_worker(Agent(answer), settings=PlaySettings(pauses=AT_ONCE)), 1)
    with pytest.raises(RunError, match=message):
        next(iter(source))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (StackRolloutWorker, trl_async.RolloutWorkerProtocol),
        (StackWeightTransfer, trl_async.WeightTransferProtocol),
    ],
)
def test_the_methods_are_those_of_trls_protocols(ours: type, theirs: type) -> None:
    expected = {name: method for name, method in vars(theirs).items() if inspect.isfunction(method) and name[0] != "_"}
    assert len(expected) >= 4
    for name, method in expected.items():
        assert list(inspect.signature(getattr(ours, name)).parameters) == list(inspect.signature(method).parameters)


@pytest.fixture
def transfer_to(tmp_path: Path) -> Iterator[Callable[..., StackWeightTransfer]]:
    loop = LoopThread("policy")
    servers: list[Any] = []

    def make(*engines: WeightEngine, timeout_s: float | None = None) -> StackWeightTransfer:
        timeout_s = timeout_s or deadline_s()
        servers.append(server := trainer_server(*engines))
        policy = loop.run(server.__aenter__())
        client = PolicyClient(policy.transport, "http://policy:1", TOKEN)
        session: Any = Session(Agent(play))
        session.close()
        session.loop = loop
        session._publisher = WeightPublisher(client, VersionFolders(tmp_path, keep=2), timeout_s=timeout_s)
        make_model(1).save_pretrained(start := tmp_path / "start")
        make_tokenizer().save_pretrained(start)
        return StackWeightTransfer(session, tmp_path / "versions", start, timeout_s=timeout_s)

    yield make
    for server in servers:
        loop.run(server.__aexit__(None, None, None))
    loop.close()


def test_all_engines_load_each_version_that_the_trainer_sends(
    transfer_to: Callable[..., StackWeightTransfer], tmp_path: Path
) -> None:
    engines, model = (WeightEngine(), WeightEngine()), make_model()
    transfer = transfer_to(*engines)
    transfer.init_weight_transfer()
    for number in (1, 2):
        transfer.pause()
        transfer.send_weights(iter(model.named_parameters()))
        transfer.resume()
        folder = tmp_path / f"step_{number:06d}"
        assert [engine.weights for engine in engines] == [str(folder)] * 2
        assert not any(engine.paused for engine in engines)
    transfer.destroy()
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    assert AutoTokenizer.from_pretrained(folder).get_vocab() == make_tokenizer().get_vocab()


def test_weights_that_an_engine_cannot_load_stop_the_training(
    transfer_to: Callable[..., StackWeightTransfer],
) -> None:
    transfer = transfer_to(engine := WeightEngine(), timeout_s=2.0)
    engine.dead = True
    with pytest.raises(RunError, match=r"step_000001 .* 2 s"):
        transfer.send_weights(iter(make_model().named_parameters()))
