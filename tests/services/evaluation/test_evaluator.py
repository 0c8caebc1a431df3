"""Each whole checkpoint is evaluated once, whatever breaks in between."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from threading import Event, Timer

import orjson
import pytest

from services.errors import OperatorError
from services.evaluation.benchmarks import Benchmark
from services.evaluation.evaluator import Evaluator
from services.evaluation.harness import Harness, Model
from services.evaluation.ledger import MOST_TRIES, Ledger
from services.evaluation.sources import LocalSource
from tests.services.evaluation.checkpoint_files import checkpoint

FAKE = (sys.executable, str(Path(__file__).with_name("fake_lm_eval.py")))
GSM8K, IFEVAL = Benchmark(task="gsm8k", num_fewshot=8), Benchmark(task="ifeval")


def evaluator(root: Path, *benchmarks: Benchmark, said: list[str] | None = None, **more: object) -> Evaluator:
    harness = Harness(command=FAKE, **more)  # type: ignore[arg-type]
    return Evaluator(
        harness, Ledger(root / "out"), benchmarks or (GSM8K,), {}, say=(said if said is not None else []).append
    )


def looked(root: Path, *benchmarks: Benchmark, said: list[str] | None = None) -> Evaluator:
    """One look at the checkpoints of `root`."""
    made = evaluator(root, *benchmarks, said=said)
    made.watch(LocalSource(root / "checkpoints"), Model(""), 0.01, Event(), once=True)
    return made


def asked(root: Path) -> list[list[str]]:
    path = root / "out/asked.jsonl"
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_whole_checkpoints_are_evaluated_by_step_and_never_again(tmp_path: Path) -> None:
    for step in (100, 20, 3):
        checkpoint(tmp_path / f"checkpoints/step_{step}")
    for _ in range(2):
        made = looked(tmp_path, GSM8K, IFEVAL)
    assert [(score.step, score.task) for score in made.ledger.scores] == [
        (step, task) for step in (3, 20, 100) for task in ("gsm8k", "ifeval")
    ]
    assert len(asked(tmp_path)) == 6
    assert (tmp_path / "out/results.csv").read_text().count("\n") == 7


def test_a_checkpoint_that_is_not_whole_waits_and_its_reason_is_said_once(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[:30])
    said: list[str] = []
    made, stopped = evaluator(tmp_path, said=said), Event()
    (tmp_path / "whole").write_bytes(whole)
    finished = Timer(0.2, lambda: (tmp_path / "whole").rename(folder / "model.safetensors"))
    finished.start()

    def say(text: str) -> None:
        said.append(text)
        if "exact_match" in text:
            stopped.set()

    watching = Evaluator(made.harness, made.ledger, made.benchmarks, {}, say=say)
    watching.watch(LocalSource(tmp_path / "checkpoints"), Model(""), 0.01, stopped, once=False)
    finished.join()
    assert len([text for text in said if "not whole yet" in text]) == 1
    assert len(made.ledger.scores) == 1


def test_an_evaluation_that_failed_is_tried_again_by_the_next_look(tmp_path: Path) -> None:
    (checkpoint(tmp_path / "checkpoints/step_1") / "broken").touch()
    said: list[str] = []
    first = looked(tmp_path, said=said)
    assert [entry.tries for entry in first.ledger.failed] == [1]
    assert any("CUDA out of memory" in text for text in said)
    second = looked(tmp_path)
    assert (second.ledger.failed, len(second.ledger.scores)) == ([], 1)


def test_one_that_always_fails_is_given_up_and_stays_named(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    for _ in range(MOST_TRIES + 2):
        (folder / "broken").touch()
        made = looked(tmp_path)
    assert len(asked(tmp_path)) == MOST_TRIES
    assert [entry.tries for entry in made.ledger.failed] == [MOST_TRIES]
    assert not made.ledger.scores


def test_an_evaluation_that_was_killed_is_done_again(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    partial = tmp_path / "out/raw/step_1/gsm8k_8shot/results_0.json"
    partial.parent.mkdir(parents=True)
    partial.write_text('{"results": {')
    assert len(looked(tmp_path).ledger.scores) == 1


def runs(process: int) -> bool:
    """Whether it is there, other than as an orphan that nobody has reaped yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_interrupted_evaluation_leaves_no_engine_behind_and_is_not_on_record(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoints/step_1")
    (folder / "slow").touch()
    engines: list[int] = []

    def show(text: str) -> None:
        if text.startswith("engine "):
            engines.append(int(text.split()[1]))
            raise KeyboardInterrupt

    made = Evaluator(Harness(command=FAKE), Ledger(tmp_path / "out"), [GSM8K], {}, show=show)
    with pytest.raises(KeyboardInterrupt):
        made.evaluate("step_1", Model(str(folder)))
    (engine,) = engines
    deadline = time.monotonic() + 10
    while runs(engine):  # it was told; it needs a moment
        assert time.monotonic() < deadline, f"process {engine} goes on"
        time.sleep(0.01)
    assert Ledger(tmp_path / "out").wants("step_1", GSM8K)


def test_the_command_line_is_the_seeds(tmp_path: Path) -> None:
    harness = Harness(max_gen_toks={"default": 1024, "gsm8k": 512})
    words = harness.words(GSM8K, Model("org/model", arguments={"tensor_parallel_size": 8}), tmp_path)
    line = " ".join(words)
    assert line.startswith(
        "lm_eval --model vllm --model_args pretrained=org/model,dtype=bfloat16,gpu_memory_utilization=0.8,"
        "max_model_len=4096,tensor_parallel_size=8 --batch_size auto --tasks gsm8k --seed 42 "
        "--gen_kwargs temperature=0,max_gen_toks=512 --num_fewshot 8 --output_path"
    )
    assert "max_gen_toks=1024" in " ".join(harness.words(IFEVAL, Model("m"), tmp_path))


@pytest.mark.parametrize(
    ("harness", "benchmark", "words"),
    [
        (Harness(gen_kwargs={"max_tokens": 100}), "gsm8k", "max_gen_toks"),
        (Harness(), "humaneval:0", "without a sandbox"),
    ],
)
def test_what_would_go_wrong_later_is_refused_at_once(harness: Harness, benchmark: str, words: str) -> None:
    with pytest.raises(OperatorError, match=words):
        harness.check([Benchmark.read(benchmark)])


def test_a_missing_lm_eval_says_how_to_install_it(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoints/step_1")
    made = Evaluator(Harness(command=("no-such-lm-eval",)), Ledger(tmp_path / "out"), [GSM8K], {})
    with pytest.raises(OperatorError, match=r"pip install 'rollyard\[lm-eval\]'"):
        made.evaluate("step_1", Model("x"))
