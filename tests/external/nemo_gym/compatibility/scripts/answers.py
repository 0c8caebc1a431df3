"""Environments in which the model answers once, in a format that contains the gold answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.external.nemo_gym.compatibility.catalog import Row
from tests.external.nemo_gym.compatibility.scripted_model import Items, Script, message
from tests.external.nemo_gym.compatibility.scripts.calendars import events

GOLD_KEYS = (
    "expected_answer", "expected_output", "answer", "ground_truth", "expected_judgement", "correct_index",
    "expected_result",
    "ground_truth_verify_score", "gold_sql", "gt_sql", "sql", "outputs", "translation",
)  # fmt: skip
WRONG = "unknown"


def is_right(number: int) -> bool:
    """Whether the answer to the row is the right one: two of three are."""
    return number % 3 != 1


def gold(row: Row) -> Any:
    """The first gold answer that the row has; None if it has none."""
    return next((row[key] for key in GOLD_KEYS if key in row), None)


def boxed(row: Row, number: int, history: Items) -> Items:
    """For environments without a script of their own."""
    answer = gold(row)
    return [message(f"The answer is \\boxed{{{answer if is_right(number) and answer is not None else WRONG}}}")]


def once(text: Callable[[Row, bool], str]) -> Script:
    """A script that answers with a message made of the row, which is right or not."""
    return lambda row, number, history: [message(text(row, is_right(number)))]


def wrapped(before: str, after: str = "") -> Script:
    """The gold answer between two texts."""
    return once(lambda row, right: f"{before}{gold(row) if right else WRONG}{after}")


def choice(row: Row, right: bool) -> str:
    options = {letter: text for option in row["options"] for letter, text in option.items()}
    other = next(letter for letter in options if letter != row["expected_answer"])
    return f"<choice>{options[row['expected_answer'] if right else other]}</choice>"


def nodes(row: Row, right: bool) -> str:
    """A list of nodes; a wrong one lacks the last, so that its score is between 0 and 1."""
    listed = json.loads(row["expected_answer"])
    return f"Final Answer: [{', '.join(listed if right else listed[:-1])}]"


def words(row: Row, right: bool) -> str:
    return " ".join(row["outputs"] if right else row["outputs"][:2])


def program(row: Row, right: bool) -> str:
    """A program that knows the outputs of the unit tests; a wrong one prints nothing."""
    tests = row["verifier_metadata"]["unit_tests"]
    known = dict(zip(map(str.strip, tests["inputs"]), tests["outputs"], strict=True)) if right else {}
    return f"```python\nimport sys\nknown = {known!r}\nprint(known.get(sys.stdin.read().strip(), ''))\n```"


def function(row: Row, right: bool) -> str:
    result = row["expected_output"] if right else [[0]]
    return f"```python\ndef transform(grid):\n    return {result}\n```"


def board(row: Row, right: bool) -> str:
    lines = row["expected_output"] if right else [[0]]
    return "\\boxed{" + "\n".join(" ".join(map(str, line)) for line in lines) + "}"


def molecule(row: Row, right: bool) -> str:
    ideal = row["verifier_metadata"].get("ideal")
    return f"<answer>{ideal if right else 'C'}</answer>"


def listing(row: Row, right: bool) -> str:
    """Lines in most of the layouts that the rows ask for, which are wrong for the rest; or plain text."""
    layouts = ('{0}. "x": y', "key {0} = value", "-- item {0}", "- item {0}", "→ item {0}")
    lines = [layout.format(number) for layout in layouts for number in (1, 2, 3)]
    return "\n".join(lines) if right else "No list."


def citations(row: Row, right: bool) -> str:
    return f"As the text says {' '.join(row['verifier']['expected_markers'] if right else [])}."


def proof(row: Row, right: bool) -> str:
    score = 1 if right else 0.5
    return f"## Solution\nBy induction.\n## Self Evaluation\nThe base case holds.\n\\boxed{{{score}}}"


def point(row: Row, right: bool) -> str:
    """A point in thousandths of the image; a wrong one is in its corner."""
    x, y = (float(part) * 1000 if right else 0 for part in row["expected_answer"].split(","))
    return f"<point>({x:.0f}, {y:.0f})</point>"


def spans(row: Row, right: bool) -> str:
    """Some hallucinated text where there is any, and none elsewhere; the opposite if it is to be wrong."""
    return json.dumps({"hallucination list": ["x"] if row["is_halu"] is right else []})


def ranking(row: Row, right: bool) -> str:
    """The genes by relevance; a wrong one as they stand in the row."""
    scored = zip(row["relevance_genes"], row["relevance_scores"], strict=True)
    ranked = [gene for gene, _ in sorted(scored, key=lambda pair: -pair[1])] if right else row["relevance_genes"]
    return f"[[ ## reasoning ## ]]\n.\n\n[[ ## answer ## ]]\n{', '.join(ranked)}\n\n[[ ## completed ## ]]"


def markdown(row: Row, right: bool) -> str:
    """The table that the row asks for; a wrong one has only its first line."""
    lines = row["gold_answer"] if right else row["gold_answer"][:1]
    names = list(lines[0])
    cells = [names, ["---"] * len(names), *([str(line[name]) for name in names] for line in lines)]
    return "```markdown\n" + "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n```"


ANSWERS: dict[str, Script] = {
    **dict.fromkeys(
        ("asr_with_pc", "equivalence_rule", "math_proof_judgement", "mrcr", "wmt_translation"), wrapped("")
    ),
    "assaybench": once(ranking),
    "bird_sql": wrapped("```sql\n", "\n```"),
    "bunsenbench_chemistry_mcq": once(choice),
    "calendar": once(events),
    "circle_count": once(
        lambda row, right: f"\\boxed{{{sum(c['color'] == row['target_color'] for c in row['circles']) + (not right)}}}"
    ),
    "code_gen": once(program),
    "equivalence_llm_judge/nl2bash-equivalency": wrapped("Answer: ```sh\n", "\n```"),
    "ether0": once(molecule),
    "format_verification/citation_format": once(citations),
    "format_verification/freeform_formatting": once(listing),
    "graphwalks": once(nodes),
    "gui_coordinate": once(point),
    "hotpotqa_qa": once(lambda row, right: json.dumps({"answer": row["expected_answer"] if right else WRONG})),
    "imo_gradingbench": wrapped("The grade is "),
    "lc_niah": once(nodes),
    "litmus_agent": wrapped("((", "))"),
    "moldetox": once(lambda row, right: json.dumps({"answer": row["verifier_metadata"]["answer"] if right else WRONG})),
    "nvarc": once(lambda row, right: (function if row.get("agent_mode") == "inductive" else board)(row, right)),
    "proof_genselect": once(
        lambda row, right: (
            f"<best_solution>{row['correct_index'] if right else 3 - row['correct_index']}</best_solution>"
        )
    ),
    "proof_judge": once(proof),
    "ragtruth": once(spans),
    "reasoning_gym": wrapped("<answer>", "</answer>"),
    "ruler": once(words),
    "ruler2": once(lambda row, right: " ".join(row["expected_answer"]) if right else WRONG),
    "spartqa": once(lambda row, right: row["target"] if right else WRONG),
    "spider2_lite": wrapped("```sql\n", "\n```"),
    "swerl_llm_judge": wrapped("<solution>", "</solution>"),
    "terminus_judge": (terminal := once(lambda row, right: row["expected_answer"] if right else "{}")),
    "terminus_judge/terminus_judge_simple": terminal,
    "text_to_sql": once(lambda row, right: f"```sql\n{row['sql'] if right else 'SELECT 1;'}\n```"),
    "widesearch": once(markdown),
}
