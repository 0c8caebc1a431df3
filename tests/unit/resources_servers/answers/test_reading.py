"""Extracting the answer from texts that announce it in many ways or name several candidates."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.answers.extraction import Finder, cut, without_reasoning
from rollyard.resources_servers.answers.finders import boxed, hashes, number, phrased, tagged
from rollyard.resources_servers.answers.grader import AnswerForm, AnswerGrader
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from rollyard.resources_servers.gsm8k.app import ANSWER_FORMS as GSM8K
from rollyard.resources_servers.math.app import ANSWER_FORMS as MATH
from tests.unit.resources_servers.answers.grading import grade_all

FORMS = pytest.mark.parametrize("form", [MATH["chat"], GSM8K["chat"]], ids=["math", "gsm8k"])
ENGLISH = r"""
The answer is 12.
Answer: $12$.
**Answer:** 12
Final answer: 12
Final Answer: **12**
The correct answer is 12.
Answer = 12
The answer to the question is:@@12
Answer@======@12
# Answer@@12
## Final Answer: 12
**Final Answer**@@12
- Answer: 12
* **Answer:** 12
┃ Answer ┃ 12 ┃
┃ Answer ┃@┃---┃@┃ 12 ┃
Answer: `12`
```json@{"answer": 12}@```
{"final_answer": "12"}
The answer is \[ 12 \]
The answer is@\[@12@\]
So the answer is@@$$12$$@
Thus the answer would be 12.
Ans: 12
A: 12
Therefore, x = 12.
So, x=12.
Thus, the number of ways is 12.
There are $12$ ways.
x = 12
Result: 12
12 is the answer.
$12$ dollars
"""
EXPLAINED = r"""
12, not 13
Answer: 12 (since 3*4=12)
The answer is 12 because 12 = 3*4.
The answer is 12, since 13 is odd.
The answer is **12**, which is 3 times 4.
The answer is 12 and that is final.
The answer is 12. I hope this helps!
Answer: 12@@Explanation: 3 groups of 4 give 12.
The answer is 12 rather than 13
the answer is $\boxed{12}$, not $\boxed{13}$
The answer is $12$ (since $3 \cdot 4 = 12$).
The answer is $x = 12$.
"""
MARKED = r"""
\boxed {12}
\boxed12
\fbox{12}
\boxed{{12}}
\boxed{\text{12}}
\boxed{x = 12}
\boxed{12}@@Answer: 12
$\boxed{12}$ and $\boxed{12.0}$
<answer>12</answer>
<ANSWER>12</ANSWER>
<answer> \boxed{12} </answer>
<answer>The answer is $12$.</answer>
3 and 5. <answer>12
\boxed{5} of them, and then <answer>12</answer>
<think>5</think><answer>12</answer>
<answer>@12@</answer>
"""
OTHER_LANGUAGES = r"""
答案是 12。
因此答案为:12
最终答案:$12$
所以答案是12。谢谢。
**答案：** 12
所以答案是 \(12\)。
Ответ: 12.
Ответ равен 12
Ответ — 12.
Итак, ответ 12.
答えは12です。
答え：12
答えは $12$ である。
정답은 12입니다.
정답: 12
따라서 답은 12이다.
La respuesta es 12.
Respuesta final: 12
La réponse est 12.
Réponse : 12
Die Antwort ist 12.
Die Antwort lautet: 12
A resposta é 12.
La risposta è 12.
الجواب هو 12
الإجابة: 12
उत्तर: 12
उत्तर 12 है।
Het antwoord is 12.
Odpowiedź: 12
"""
RETRACTED = r"""
The answer is 11. Wait, no, it's 12.
\boxed{11}. Actually no, it's 12.
\boxed{11}@@Wait, I made a mistake. The answer is 12.
\boxed{11} is wrong, \boxed{12}
First \boxed{5}, then we double and add two, so the total is \boxed{12}.
answer is 1. No, the answer is 12.
"""
SEVERAL = r"""
12 and 13
12 (or maybe 13)
either 12 or 13
13 or 12
possibly 12, maybe 13
I think it's 12 or possibly 13
The answer is either 12 or 13.
The answer is 12 or maybe 13.
The answer is 12. Or maybe 13.
The answer is 12. It could also be 13.
The answer is 12, but it could be 13.
The answer is $12$ or $13$.
The answer is $12$ and $13$
Answer: 12, 13
Answer: 12; 13
Answer:@- 12@- 13
Answer:@12@13
The answer is 12 (13).
The answer is 13. The answer is 12.
#### 13@#### 12
<answer>13</answer><answer>12</answer>
12 or 12.5
<answer>12 or 13</answer>
<answer>13</answer> or <answer>12</answer>
答案是12或13。
Ответ: 12 или 13
{"answer": [12, 13]}
x = 13 or x = 12
\boxed{13} \boxed{12}
\boxed{13}, \boxed{12}
\boxed{13}@\boxed{12}
$\boxed{13}$@@$\boxed{12}$
\[\boxed{13}\]@\[\boxed{12}\]
\boxed{13} or \boxed{12}
\boxed{13}\text{ or }\boxed{12}
\boxed{13}. Or maybe \boxed{12}.
\boxed{13}/\boxed{12}
\boxed{13} or else \boxed{12}
Answer 1: \boxed{13}@Answer 2: \boxed{12}
\boxed{13} or, if that is wrong, \boxed{12}
\boxed{12} (or maybe 13)
\boxed{12}, or possibly 13.
13 or \boxed{12}
\boxed{12}@@(or 13)
\boxed{12}. The answer is 13.
The answer is 12 to 14
neither 12 nor 13
"""
DENIED = r"""
The answer is not 12.
13, not 12
The answer is 13, not 12.
\boxed{13} not \boxed{12}
The answer is between 12 and 14.
The answer is half of 12.
The answer is at least 12.
The answer is negative $12$.
The answer is minus 12
\boxed{12}. Actually no, it's 13.
\boxed{12}. Wait, no. It's 13.
\boxed{12}@@Actually, the answer is 13.
The answer is 12. No, wait, it should be 13.
"""


def texts(block: str) -> list[str]:
    """The texts of a block, where `@` is a line break and `┃` a vertical bar."""
    return [line.replace("@", "\n").replace("┃", "|") for line in block.strip().splitlines()]


BLOCKS = {
    "announced": (ENGLISH, True),
    "explained": (EXPLAINED, True),
    "marked": (MARKED, True),
    "in another language": (OTHER_LANGUAGES, True),
    "after a retraction": (RETRACTED, True),
    "one of several": (SEVERAL, False),
    "negated or qualified": (DENIED, False),
}


@FORMS
@pytest.mark.parametrize(("block", "right"), BLOCKS.values(), ids=BLOCKS)
async def test_the_number_12_is_read_from_every_wording_that_gives_it(
    form: AnswerForm, block: str, right: bool
) -> None:
    grades = await grade_all(AnswerGrader(None), form, [("12", text) for text in texts(block)])
    assert [text for text, grade in zip(texts(block), grades, strict=True) if grade.lenient is not right] == []


CHOICE = r"""
the correct option is (A)
The answer is (A) 15
**A**
The correct choice is A.
正确答案是 (A)
答案选A
故选 A。
(A)
The answer is **(A) 15**.
The answer is option A.
Option A is correct.
The answer is $\text{(A)}$.
Answer: A
"""
LIST = r"""
x=2 and x=3
The solutions are $x=2$ and $x=3$.
$x=\boxed{2}$ and $x=\boxed{3}$
\boxed{2}@\boxed{3}
Answer:@- 2@- 3
The answers are 2 and 3.
{"answer": [2, 3]}
The answer is either 2 or 3.
<answer>2 and 3</answer>
\boxed{x=2}@\boxed{x=3}
\boxed{2} or 3
The first root is $\boxed{2}$, because $4-4=0$. The second root is, after some work, $\boxed{3}$.
"""
TWO_NOTATIONS = r"""
\boxed{0.5} \boxed{\frac12}
\boxed{\frac12} (or 0.5)
The answer is \frac{1}{2}.
Therefore, x = \frac{1}{2}.
The answer is $\frac12$, i.e. $0.5$
The answer is 1/2 (0.5).
The answer is $\frac{2}{4} = \frac{1}{2}$.
{"answer": "\frac{1}{2}"}
\boxed{\dfrac{1}{2}}@@The answer is one half.
"""
MONEY = """
so the final answer is 3.5 dollars
The answer is $3.50.
It costs $3.50 in total.
The answer is 7/2 = 3.5.
"""


NO_LIST = r"""
\boxed{2}
\boxed{2}, \boxed{4}
\boxed{2}, \boxed{3}, \boxed{4}
\boxed{2} so \boxed{2,4}
"""
CONTRADICTED = {
    r"\text{A}": r"""
\boxed{A}@@**Answer: D**
\boxed{A}. The answer is D.
<answer>A</answer>@@The answer is D.
""",
    "18": r"""
\boxed{18}@@**Answer: 20**
\boxed{18}@@#### 20
\boxed{18}. So the solution is x=20.
\boxed{18}. So not 18 but 20.
<answer>18</answer>@@Final answer: 20
""",
    "(x-1)(x+1)": r"""
\boxed{(x-1)(x+1)}@@Final answer: $(x-1)^2$
\boxed{(x-1)(x+1)}. The answer is $x^2+1$.
""",
    r"\text{Friday}": r"""
\boxed{\text{Friday}}@@**Answer: Monday**
\boxed{\text{Friday}}. The answer is Sunday.
""",
    "(2,5)": r"""
\boxed{(2,5)}@@**Answer:** $(2,6)$
\boxed{(2,5)}. The answer is $[2,5]$.
""",
}
DISCUSSED = {
    "18": r"""
\boxed{18}@@**Answer: 18**
\boxed{18}. The answer is correct.
\boxed{18}. The other solution is x=20.
\boxed{18}. The answer is reasonable, because 18 < 20.
The answer of part one is 20.@@\boxed{18}
\boxed{18}, not 20.
<answer>18</answer>@@The answer is 18 dollars.
""",
    r"\text{A}": r"""
\boxed{A}. The answer is (A).
\boxed{A}@@Final Answer: A. Options B, C and D are wrong.
""",
    "(x-1)(x+1)": r"\boxed{(x-1)(x+1)}@@Final answer: $(x+1)(x-1)$",
    r"\text{Friday}": r"""
\boxed{\text{Friday}}. The answer is Friday.
\boxed{\text{Friday}}. The answer is clear.
""",
}
READ = [
    *((gold, block, False) for gold, block in [("2,3", NO_LIST), *CONTRADICTED.items()]),
    *((gold, block, True) for gold, block in DISCUSSED.items()),
    (r"\text{(A)}", CHOICE, True),
    ("2,3", LIST, True),
    (r"\frac{1}{2}", TWO_NOTATIONS, True),
    ("3.5", MONEY, True),
    (r"\text{Tom and Jerry}", "The answer is Tom and Jerry.", True),
]


@pytest.mark.parametrize(("gold", "block", "right"), READ)
async def test_lists_choices_and_repetitions_are_understood_and_contradictions_are_wrong(
    patient_workers: WorkerPool, gold: str, block: str, right: bool
) -> None:
    grades = await grade_all(AnswerGrader(patient_workers), MATH["chat"], [(gold, text) for text in texts(block)])
    assert [text for text, grade in zip(texts(block), grades, strict=True) if grade.lenient is not right] == []
    assert right or not any(grade.strict for grade in grades)


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
