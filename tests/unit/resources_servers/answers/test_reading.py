"""Extracting the answer from texts that announce it in many ways or name several candidates."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.answers.extraction import cut, without_reasoning
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


async def wrongly_graded(form: AnswerForm, block: str, *, right: bool) -> list[str]:
    grades = await grade_all(AnswerGrader(None), form, [("12", text) for text in texts(block)])
    return [text for text, grade in zip(texts(block), grades, strict=True) if grade.lenient is not right]


@FORMS
@pytest.mark.parametrize("block", [ENGLISH, EXPLAINED, MARKED], ids=["announced", "explained", "marked"])
async def test_a_right_answer_is_found_however_it_is_announced(form: AnswerForm, block: str) -> None:
    assert await wrongly_graded(form, block, right=True) == []


@FORMS
async def test_announcements_in_other_languages_are_understood(form: AnswerForm) -> None:
    assert await wrongly_graded(form, OTHER_LANGUAGES, right=True) == []


@FORMS
async def test_a_retracted_answer_is_replaced_by_the_next_one(form: AnswerForm) -> None:
    assert await wrongly_graded(form, RETRACTED, right=True) == []


@FORMS
async def test_a_text_with_several_candidates_is_wrong(form: AnswerForm) -> None:
    assert await wrongly_graded(form, SEVERAL, right=False) == []


@FORMS
async def test_a_number_that_is_negated_or_qualified_is_wrong(form: AnswerForm) -> None:
    assert await wrongly_graded(form, DENIED, right=False) == []


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


@pytest.mark.parametrize(
    ("gold", "block"),
    [
        (r"\text{(A)}", CHOICE),
        ("2,3", LIST),
        (r"\frac{1}{2}", TWO_NOTATIONS),
        ("3.5", MONEY),
        (r"\text{Tom and Jerry}", "The answer is Tom and Jerry."),
    ],
    ids=["a choice", "a list", "two notations", "money", "words with and"],
)
async def test_lists_and_repeated_values_are_understood(patient_workers: WorkerPool, gold: str, block: str) -> None:
    grades = await grade_all(AnswerGrader(patient_workers), MATH["chat"], [(gold, text) for text in texts(block)])
    assert [text for text, grade in zip(texts(block), grades, strict=True) if not grade.lenient] == []


async def test_one_of_several_values_is_not_the_whole_list(patient_workers: WorkerPool) -> None:
    for text in (
        r"\boxed{2}",
        r"\boxed{2}, \boxed{4}",
        r"\boxed{2}, \boxed{3}, \boxed{4}",
        r"\boxed{2} so \boxed{2,4}",
    ):
        (grade,) = await grade_all(AnswerGrader(patient_workers), MATH["chat"], [("2,3", text)])
        assert not grade.lenient, text


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
    wrong = []
    for turn in NEXT_TURNS:
        for answer in ("So it is \\boxed{18}.", "The answer is 18.", "#### 18"):
            text = answer + turn + answer.replace("18", "5")
            wrong += [
                (gold, text)
                for gold, grade in zip(
                    ("18", "5"), await grade_all(AnswerGrader(None), form, [("18", text), ("5", text)]), strict=True
                )
                if grade.lenient != (gold == "18")
            ]
    assert wrong == []


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


@pytest.mark.parametrize(
    ("gold", "texts"),
    [
        (
            r"\text{A}",
            ["\\boxed{A}\n\n**Answer: D**", "\\boxed{A}. The answer is D.", "<answer>A</answer>\n\nThe answer is D."],
        ),
        (
            "18",
            [
                "\\boxed{18}\n\n**Answer: 20**",
                "\\boxed{18}\n\n#### 20",
                "\\boxed{18}. So the solution is x=20.",
                "\\boxed{18}. So not 18 but 20.",
                "<answer>18</answer>\n\nFinal answer: 20",
            ],
        ),
        (
            "(x-1)(x+1)",
            ["\\boxed{(x-1)(x+1)}\n\nFinal answer: $(x-1)^2$", "\\boxed{(x-1)(x+1)}. The answer is $x^2+1$."],
        ),
        (
            r"\text{Friday}",
            ["\\boxed{\\text{Friday}}\n\n**Answer: Monday**", "\\boxed{\\text{Friday}}. The answer is Sunday."],
        ),
        ("(2,5)", ["\\boxed{(2,5)}\n\n**Answer:** $(2,6)$", "\\boxed{(2,5)}. The answer is $[2,5]$."]),
    ],
)
async def test_two_different_final_answers_are_none(workers: WorkerPool, gold: str, texts: list[str]) -> None:
    grades = await grade_all(AnswerGrader(workers), MATH["chat"], [(gold, text) for text in texts])
    assert [text for text, grade in zip(texts, grades, strict=True) if grade.lenient or grade.strict] == []


async def test_what_repeats_or_discusses_the_answer_is_no_second_answer(workers: WorkerPool) -> None:
    pairs = [
        ("18", "\\boxed{18}\n\n**Answer: 18**"),
        ("18", "\\boxed{18}. The answer is correct."),
        ("18", "\\boxed{18}. The other solution is x=20."),
        ("18", "\\boxed{18}. The answer is reasonable, because 18 < 20."),
        ("18", "The answer of part one is 20.\n\n\\boxed{18}"),
        ("18", "\\boxed{18}, not 20."),
        ("18", "<answer>18</answer>\n\nThe answer is 18 dollars."),
        (r"\text{A}", "\\boxed{A}. The answer is (A)."),
        (r"\text{A}", "\\boxed{A}\n\nFinal Answer: A. Options B, C and D are wrong."),
        ("(x-1)(x+1)", "\\boxed{(x-1)(x+1)}\n\nFinal answer: $(x+1)(x-1)$"),
        (r"\text{Friday}", "\\boxed{\\text{Friday}}. The answer is Friday."),
        (r"\text{Friday}", "\\boxed{\\text{Friday}}. The answer is clear."),
    ]
    grades = await grade_all(AnswerGrader(workers), MATH["chat"], pairs)
    assert [pair for pair, grade in zip(pairs, grades, strict=True) if not grade.lenient] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{18}", "18"),
        (r"so \boxed{17}, no: \boxed{18}.", "18"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{18}}", "18"),
        (r"\fbox{18}", "18"),
        (r"$\boxed 5$", "5"),
        (r"\boxed { 18 }", "18"),
        ("\\boxed{\n18\n}", "18"),
        (r"\boxed{}", ""),
        (r"\boxed{1} or \boxed{2}", "1, 2"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"$a = \boxed{-1}$ and $a = \boxed{2}.$", "-1, 2"),
        (r"\boxed{3}, \boxed{3}", "3"),
        ("\\boxed{1}\n\n\\boxed{2}", "1, 2"),
        (r"`\boxed{` is what I use: \boxed{18}", "18"),
        (r"\boxed{18}, in \boxed{...} as you asked", "18"),
        ("no box", None),
    ],
)
def test_the_last_box_or_row_of_boxes_is_the_answer(text: str, expected: str | None) -> None:
    box = boxed(text)
    assert (box.text if box else None) == expected


@pytest.mark.parametrize("text", [r"\boxed{18", r"\boxed{17} then \boxed{\frac{1}{2}", "\\boxed{" * 2000])
def test_an_unclosed_box_is_incomplete(text: str) -> None:
    box = boxed(text)
    assert box is not None
    assert not box.whole


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>hm</think>18", "18"),
        ("hm</think>18", "18"),
        ("<think>a</think>b<think>c</think>18", "18"),
        ("<think>it is 18", ""),
        ("18 <think>or not", "18 "),
        ("<thinking>hm</thinking>18", "18"),
        ("18", "18"),
    ],
)
def test_reasoning_is_removed(text: str, rest: str) -> None:
    assert without_reasoning(text) == rest


def test_a_text_ends_at_the_first_stop_string() -> None:
    assert cut("18\n\nQ: next?\nQuestion: 19", ("Question:", "Q:")) == "18\n\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 18.", "18"),
        ("The answer is: $18.50. Good.", "$18.50"),
        ("**Answer:** 18", "18"),
        ("The final answer is **18**.", "18"),
        ("reasoning\nA: 18", "18"),
        ("answer is 1. No, the answer is 2.", "2"),
        ("answering 18", None),
    ],
)
def test_a_phrase_is_followed_by_its_answer_up_to_the_end_of_the_sentence(text: str, expected: str | None) -> None:
    phrase = phrased(text)
    assert (phrase.text if phrase else None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from 3 to 18.", "18"),
        ("1,018 eggs", "1,018"),
        ("It costs $1,018.50.", "$1,018.50"),
        ("minus -3", "-3"),
        ("16 - 3", "3"),
        ("100% of 50%", "50%"),
        ("v2 of x3", None),
        ("., ok", None),
        ("", None),
    ],
)
def test_the_last_number_must_be_a_separate_word(text: str, expected: str | None) -> None:
    last = number(text.replace("16 - 3", "16-3"))
    assert (last.text if last else None) == expected


def test_hashes_and_tags_are_read_to_their_ends() -> None:
    assert [found.text for found in (hashes("#### 1,018\nbye"), tagged("<answer> 5 </answer>")) if found] == [
        "1,018",
        "5",
    ]
