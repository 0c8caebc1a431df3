"""Extracting the answer from texts that announce it in many ways or name several candidates."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.resources_servers.answers.extraction import Finder, cut, without_reasoning
from rollyard.resources_servers.answers.finders import boxed, hashes, number, phrased, tagged
from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.math.app import ANSWER_FORMS as MATH
from tests.unit.resources_servers.answers.grading import grade_all

FORMS = pytest.mark.parametrize("form", [MATH["chat"], GSM8K["chat"]], ids=["math", "gsm8k"])


Reading = tuple[str, list[str], bool]
READINGS: dict[str, list[Reading]] = {}
"""By kind: (gold answer, texts, whether they give it). ` ;; ` is between two texts of the file, `@` a line break, and
`┃` a vertical bar."""
for block in (Path(__file__).parent / "readings.txt").read_text("utf-8").removeprefix("# ").split("\n# "):
    _header, *_lines = block.strip("\n").splitlines()
    _kind, _gold, _right = _header.split(" || ")
    _texts = [text.replace("@", "\n").replace("┃", "|") for line in _lines for text in line.split(" ;; ")]
    READINGS.setdefault(_kind, []).append((_gold, _texts, _right == "right"))
TWELVE = {kind: readings[0] for kind, readings in READINGS.items() if readings[0][0] == "12"}


async def misread(grader: AnswerGrader, form: AnswerForm, reading: Reading) -> list[str]:
    gold, texts, right = reading
    grades = await grade_all(grader, form, [(gold, text) for text in texts])
    assert right or not any(grade.strict for grade in grades)
    return [text for text, grade in zip(texts, grades, strict=True) if grade.lenient is not right]


@FORMS
@pytest.mark.parametrize("reading", TWELVE.values(), ids=TWELVE)
async def test_the_number_12_is_read_from_every_wording_that_gives_it(form: AnswerForm, reading: Reading) -> None:
    assert await misread(AnswerGrader(None), form, reading) == []


@pytest.mark.parametrize("reading", READINGS["understood"] + READINGS["contradicted"], ids=lambda reading: reading[0])
async def test_lists_choices_and_repetitions_are_understood_and_contradictions_are_wrong(
    patient_workers: WorkerPool, reading: Reading
) -> None:
    assert await misread(AnswerGrader(patient_workers), MATH["chat"], reading) == []


NEXT_TURNS = [
    "<|im_end|>\n<|im_start|>user\nWhat is 2+3?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_end|>\n<|im_start|>user\nWhat is 2+3?<|im_end|>\n<|im_start|>assistant\n<think>2+3</think>",
    "</s>[INST] What is 2+3? [/INST] ",
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n2+3?<|eot_id|>\n\n",
    "<end_of_turn>\n<start_of_turn>user\n2+3?<end_of_turn>\n<start_of_turn>model\n",
    "<|endoftext|>Human: 2+3?\n\nAssistant: ",
    "<｜end▁of▁sentence｜><｜User｜>2+3?<｜Assistant｜>",
    "\n<|user|>\n2+3?\n<|assistant|>\n",
    "\n\nUser: What is 2+3?\n\nAssistant: ",
    "\n\nHuman: What is 2+3?\n\nAssistant: ",
    "\n\nQuestion: What is 2+3?\nAnswer: ",
    "\n\n**Question:** What is 2+3?\nAnswer: ",
    "\n\nProblem 2: What is 2+3?\n\nSolution: ",
    "\n\nQ: What is 2+3?\nA: ",
    "\n\n### Instruction:\n2+3?\n\n### Response:\n",
]
ALL_FORMS = [(name, form) for forms in (MATH, GSM8K) for name, form in forms.items() if name != "lm_eval_hendrycks"]


@pytest.mark.parametrize("form", [form for _, form in ALL_FORMS], ids=[name for name, _ in ALL_FORMS])
async def test_the_answer_stands_before_the_next_turn(form: AnswerForm) -> None:
    pairs = [
        (gold, answer + turn + answer.replace("18", "5"))
        for turn in NEXT_TURNS
        for answer in ("So it is \\boxed{18}.", "The answer is 18.", "#### 18")
        for gold in ("18", "5")
    ]
    grades = await grade_all(AnswerGrader(None), form, pairs)
    assert [pair for pair, grade in zip(pairs, grades, strict=True) if grade.lenient != (pair[0] == "18")] == []


@FORMS
async def test_tokens_and_labels_before_an_answer_do_not_end_the_turn(form: AnswerForm) -> None:
    texts = [
        "<|im_start|>assistant\nIt is \\boxed{18}<|im_end|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\nIt is \\boxed{18}.",
        "Let me restate it.\n\nProblem: find it.\n\nSolution: it is \\boxed{18}.",
        "I solve it.\n\nQuestion: what is asked?\n\nThe answer is 18.",
        "<think>The answer is 5.\n\nUser: hm</think>It is \\boxed{18}.",
        "The answer is 5.\n\nQuestion: is it?</think>It is \\boxed{18}.",
    ]
    grades = await grade_all(AnswerGrader(None), form, [("18", text) for text in texts])
    assert [text for text, grade in zip(texts, grades, strict=True) if not grade.lenient] == []


FOUND: dict[Finder, list[tuple[str, str | None]]] = {
    boxed: [
        (r"\boxed{18}", "18"), (r"so \boxed{17}, no: \boxed{18}.", "18"), (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"), (r"\boxed{\boxed{18}}", "18"), (r"\fbox{18}", "18"), (r"$\boxed 5$", "5"),
        (r"\boxed { 18 }", "18"), ("\\boxed{\n18\n}", "18"), (r"\boxed{}", ""), (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"), (r"$a = \boxed{-1}$ and $a = \boxed{2}.$", "-1, 2"),
        (r"\boxed{3}, \boxed{3}", "3"), ("\\boxed{1}\n\n\\boxed{2}", "1, 2"), ("no box", None),
        (r"`\boxed{` is what I use: \boxed{18}", "18"), (r"\boxed{18}, in \boxed{...} as you asked", "18"),
    ],
    phrased: [
        ("The answer is 18.", "18"), ("The answer is: $18.50. Good.", "$18.50"), ("**Answer:** 18", "18"),
        ("The final answer is **18**.", "18"), ("reasoning\nA: 18", "18"), ("answering 18", None),
        ("answer is 1. No, the answer is 2.", "2"),
    ],
    number: [
        ("from 3 to 18.", "18"), ("1,018 eggs", "1,018"), ("It costs $1,018.50.", "$1,018.50"), ("minus -3", "-3"),
        ("16-3", "3"), ("100% of 50%", "50%"), ("v2 of x3", None), ("., ok", None), ("", None),
    ],
    hashes: [("#### 1,018\nbye", "1,018")],
    tagged: [("<answer> 5 </answer>", "5")],
}  # fmt: skip


@pytest.mark.parametrize("finder", FOUND, ids=lambda finder: finder.__name__)
def test_a_finder_returns_the_last_answer_in_its_format(finder: Finder) -> None:
    texts = [text for text, _ in FOUND[finder]]
    assert [(text, found.text if (found := finder(text)) else None) for text in texts] == FOUND[finder]


@pytest.mark.parametrize("text", [r"\boxed{18", r"\boxed{17} then \boxed{\frac{1}{2}", "\\boxed{" * 2000])
def test_an_unclosed_box_is_incomplete(text: str) -> None:
    box = boxed(text)
    assert box is not None
    assert not box.whole


def test_reasoning_is_removed_and_a_text_ends_at_the_first_stop_string() -> None:
    for text in (
        "<think>hm</think>18",
        "hm</think>18",
        "<think>a</think>b<think>c</think>18",
        "<thinking>a</thinking>18",
    ):
        assert without_reasoning(text) == "18"
    assert (without_reasoning("<think>it is 18"), without_reasoning("18 <think>or not")) == ("", "18 ")
    assert cut("18\n\nQ: next?\nQuestion: 19", ("Question:", "Q:")) == "18\n\n"
