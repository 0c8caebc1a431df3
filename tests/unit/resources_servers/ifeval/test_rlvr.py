"""The functions and rows of the training set RLVR-IFEval."""

from __future__ import annotations

from pathlib import Path
from time import process_time
from typing import Any

import orjson
import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.types import Json
from rollyard.resources_servers.ifeval.app import server
from rollyard.resources_servers.ifeval.prepare import main
from rollyard.resources_servers.ifeval.rlvr import FUNCTIONS, instruction
from tests.unit.resources_servers.answers.grading import in_process_server, rows_of
from tests.unit.resources_servers.ifeval.following_texts import SAMPLES

EXAMPLES = INSTALLED / "resources_servers/ifeval/data/train_example.jsonl"
EVERY_KEY = [
    "N", "quantifier", "end_phrase", "keyword_list", "word", "forbidden_words", "letter",
    "i", "first_word", "postscript_marker", "options", "section_splitter", "original_prompt", "language",
]  # fmt: skip
SENTENCES = "Gov. Lee met the U.S. team. They spoke at 5 p.m. in St. Louis. All agreed."
CASES: list[tuple[str, Json, list[str], list[str]]] = [
    ("verify_keywords", {"keyword_list": ["Art", "C++"]}, ["c++ is an art", "C++ for artists"], ["an art"]),
    ("verify_keyword_frequency", {"word": "cat", "N": 2}, ["Cat, cat!"], ["cat", "cat cats", "cat cat cat"]),
    ("verify_keyword_frequency", {"word": "e-mail", "N": 1}, ["an e-mail"], ["email", "e-mail e-mail"]),
    ("validate_forbidden_words", {"forbidden_words": ["bad", "C++"]}, ["good"], ["BAD", "badly", "c++"]),
    ("verify_letter_frequency", {"letter": "a", "N": 2}, ["banAna", "a b a"], ["banana", "A a"]),
    ("validate_response_language", {"language": "de"}, [SAMPLES["de"]], [SAMPLES["it"]]),
    ("verify_paragraph_count", {"N": 2}, ["a\n* * *\nb"], ["a", "a\n***\nb", "a\n* * *\n", "a* * *b* * *c"]),
    ("validate_word_constraint", {"N": 3, "quantifier": "at least"}, ["a b c", "a b c d"], ["a b", "a-b-c"]),
    ("validate_word_constraint", {"N": 3, "quantifier": "at most"}, ["a b c"], ["a b c d"]),
    ("validate_word_constraint", {"N": 20, "quantifier": "around"}, ["w " * 18, "w " * 22], ["w " * 17, "w " * 23]),
    ("verify_sentence_constraint", {"N": 3, "quantifier": "at most"}, [SENTENCES], [f"{SENTENCES} So it is."]),
    ("verify_sentence_constraint", {"N": 4, "quantifier": "around"}, [SENTENCES], ["One. Two."]),
    ("verify_sentence_constraint", {"N": 4, "quantifier": "at least"}, ["One. Two! Three? Four."], [SENTENCES]),
    (
        "validate_paragraphs",
        {"N": 2, "i": 2, "first_word": "The"},
        ["One.\n\nThe end.", "One.\n\n\n\nThe end."],
        ["One.\n\nThere.", "One.\n\nthe end.", "The.\n\nOne.", "One.\n\nThe.\n\nTwo."],
    ),
    ("verify_postscript", {"postscript_marker": "P.S."}, ["Dear.\nP.S. Call me."], ["Dear.", "Dear. P.S. ", "p.s. x"]),
    ("validate_placeholders", {"N": 2}, ["[a] and [b]", "[a][b][c]"], ["[a]", "[a\nb] [c]"]),
    ("verify_bullet_points", {"N": 2}, ["* a\n* b", "- a\n  - b"], ["* a", "* a\n* b\n* c", "**A**\n* b"]),
    ("validate_title", {}, ["<<A title>>\ntext"], ["<A>", "<<>>", "<<a\nb>>"]),
    (
        "validate_choice",
        {"options": ["sure", "not sure", "a"]},
        ["I am sure.", "not sure", "It is a"],
        ["unsure", "sure, not sure, a", "An answer", "SURE"],
    ),
    ("validate_choice", {"options": "yes/no/maybe"}, ["yes"], ["yes or no", "s"]),
    ("validate_highlighted_sections", {"N": 2}, ["*a* and *b*", "**a** *b*"], ["*a*", "****"]),
    (
        "validate_sections",
        {"N": 2, "section_splitter": "Section"},
        ["Section 1\na\nSECTION 2\nb"],
        ["Section 1", "Section Section", "Section one, Section two"],
    ),
    ("validate_json_format", {}, ['{"a": 1}', "```json\n[1]\n```"], ["{a: 1}", 'Here: {"a": 1}', "[" * 100_000]),
    ("validate_repeat_prompt", {"original_prompt": "Say hi."}, ["Say hi. Hi!"], ["Hi!", "Sure. Say hi."]),
    ("validate_two_responses", {}, ["one\n******\ntwo"], ["one", "one******one", "one******", "a******b******c"]),
    ("validate_uppercase", {}, ["ALL OF IT, 5."], ["Not all", "5."]),
    ("validate_lowercase", {}, ["all of it, 5."], ["Not all", "5."]),
    (
        "validate_frequency_capital_words",
        {"N": 2, "quantifier": "at least"},
        ["NASA and I", "A B C"],
        ["NASA", "N1 Ab"],
    ),
    ("validate_frequency_capital_words", {"N": 1, "quantifier": "at most"}, ["none", "ONE"], ["ONE TWO"]),
    ("validate_frequency_capital_words", {"N": 1, "quantifier": "around"}, ["none", "ONE TWO"], ["A B C"]),
    ("validate_end", {"end_phrase": "The end."}, ["So. The end.", "The end. \n"], ["the end.", "The end. Bye."]),
    ("validate_quotation", {}, ['"all of it"'], ['"', 'say "it"', "“it”"]),
    ("validate_no_commas", {}, ["none here"], ["one, two"]),
]


def follows(name: str, kwargs: Json, text: str) -> bool:
    row = {"func_name": name, **dict.fromkeys(EVERY_KEY), **kwargs}
    return instruction(orjson.dumps(row).decode())[1].followed(text)


@pytest.mark.parametrize(("name", "kwargs", "right", "wrong"), CASES)
def test_a_function_accepts_only_answers_that_follow_the_prompt(
    name: str, kwargs: Json, right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if not follows(name, kwargs, text)] == []
    assert [text for text in [*wrong, "", " \n"] if follows(name, kwargs, text)] == []


def test_every_function_of_the_dataset_is_supported_and_tested() -> None:
    assert {name for name, *_ in CASES} == set(FUNCTIONS)
    assert len(FUNCTIONS) == 25


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_function_is_fast_on_a_long_text(name: str) -> None:
    kwargs = next(kwargs for known, kwargs, *_ in CASES if known == name)
    for text in ("* " * 25_000, "<<" * 25_000, "[" * 50_000, "a. " * 15_000, "\n\n" * 25_000, "Section " * 6_000):
        started = process_time()
        follows(name, kwargs, f"{text}x")
        assert process_time() - started < 5.0, text[:8]  # linear: 0.2 s


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ("{", "func_name"),
        ([], "func_name"),
        ({"func_name": "verify_nonsense"}, "verify_nonsense"),
        ({"func_name": ["verify_keywords"]}, "verify_keywords"),
        ({"func_name": "verify_bullet_points"}, "verify_bullet_points: N:"),
        ({"func_name": "verify_bullet_points", "N": True}, "N: found True"),
        ({"func_name": "verify_keywords", "keyword_list": ["a", " "]}, "found ' '"),
        ({"func_name": "verify_letter_frequency", "letter": "ab", "N": 1}, "letter:"),
        ({"func_name": "validate_word_constraint", "N": 3, "quantifier": "exactly"}, "found 'exactly'"),
        ({"func_name": "validate_paragraphs", "N": 3, "i": 4, "first_word": "a"}, "i is 4"),
        ({"func_name": "validate_choice", "options": []}, "options:"),
        ({"func_name": "validate_response_language"}, "language:"),
    ],
)
async def test_a_training_row_that_cannot_be_scored_is_refused_with_its_id(kwargs: Any, message: str) -> None:
    text = kwargs if isinstance(kwargs, str) else orjson.dumps(kwargs).decode()
    async with in_process_server(server) as environment:
        answer = await environment.ask({"id": "ifeval_train_7", "ground_truth": text}, "text")
    assert answer.status == 422
    detail = orjson.loads(answer.body)["detail"]
    assert "IFEval row ifeval_train_7: " in detail and message in detail


async def test_the_example_rows_of_the_training_set_are_scored_strictly_and_loosely() -> None:
    rows = rows_of(EXAMPLES)
    async with in_process_server(server) as environment:
        points = next(row for row in rows if row["constraint_type"] == "Number Bullets")
        right = await environment.verdict(points, "* wires\n* pipes\n* coins")
        framed = await environment.verdict(points, "- Sure:\n* wires\n* pipes\n* coins")
        wrong = await environment.verdict(points, "wires")
        verdicts = [await environment.verdict(row, "<think>no, yes</think>It depends.") for row in rows]
    assert [verdict["reward"] for verdict in (right, framed, wrong)] == [1.0, 0.0, 0.0]
    assert framed["lenient_score"] == 1.0
    assert wrong["reason"] == "not followed: verify_bullet_points"
    assert [verdict["reward"] for verdict in verdicts] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]


def source_row(prompt: str, kwargs: Json) -> Json:
    """A row as in the hub's Parquet file."""
    return {
        "messages": [{"role": "user", "content": prompt}],
        "ground_truth": orjson.dumps({**dict.fromkeys(EVERY_KEY), **kwargs}).decode(),
        "dataset": "ifeval",
        "constraint_type": "Title",
        "constraint": "Your answer must contain a title.",
    }


def test_hub_rows_become_task_rows_and_unscorable_ones_are_skipped_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        source_row("Write a poem.", {"func_name": "validate_title"}),
        source_row("Write two.", {"func_name": "validate_choice"}),
        source_row("Write three.", {"func_name": "verify_bullet_points", "N": 3}),
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(map(orjson.dumps, rows)))
    main(["--dataset", "ifeval_train", "--local", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")])
    written = rows_of(tmp_path / "out.jsonl")
    assert [row["id"] for row in written] == ["ifeval_train_0", "ifeval_train_2"]
    assert written[0]["responses_create_params"] == {"input": [{"role": "user", "content": "Write a poem."}]}
    assert written[0]["ground_truth"] == rows[0]["ground_truth"]
    printed = capsys.readouterr().err
    assert "skipped 1 rows" in printed and "row 1: validate_choice: options" in printed
