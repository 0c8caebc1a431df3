"""Dockerfiles are read as Docker reads them; what a box cannot do is refused with the instruction."""

from __future__ import annotations

import pytest

from rollyard.resources_servers.harbor_task.dockerfile import Build, Copy, Run, UnsupportedTask, read_build
from tests.unit.resources_servers.harbor_task.folders import HOST


def build(text: str, *accepted: str) -> Build:
    return read_build(text, HOST, accepted)


def after_from(text: str) -> Build:
    return build(f"FROM debian:12\n{text}\n")


def test_the_working_directory_is_relative_to_the_one_before() -> None:
    found = after_from("WORKDIR /app\nWORKDIR src\nWORKDIR ../tests")
    assert found.workdir == "/app/tests" and found.folders == ["/app", "/app/src", "/app/tests"]


def test_variables_are_replaced_in_later_instructions() -> None:
    found = after_from(
        "ARG NAME=x\nENV ROOT=/data FILE=${NAME:-y}.txt\nENV OLD value with spaces\nWORKDIR $ROOT/${NONE:-sub}"
    )
    assert found.workdir == "/data/sub"
    assert found.env["FILE"] == "x.txt" and found.env["OLD"] == "value with spaces"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('A="two words"', "two words"),
        ("A=two\\ words", "two words"),
        ("A=$PATH:/x", None),
        ("A=\\$HOME", "$HOME"),
        ("A 'x y'", "x y"),
    ],
)
def test_values_of_variables_may_be_quoted_or_escaped(text: str, value: str | None) -> None:
    found = after_from(f"ENV {text}").env
    assert found["A"] == (value if value is not None else f"{found['PATH']}:/x")


def test_a_command_runs_with_the_shell_directory_and_variables_of_its_place() -> None:
    found = after_from(
        'RUN a\nSHELL ["/bin/bash", "-ec"]\nWORKDIR /app\nENV X=1\nRUN b && \\\n  # a comment\n  c\nRUN ["d", "e f"]'
    )
    first, second, third = [step for step in found.steps if isinstance(step, Run)]
    assert first.argv == ("/bin/sh", "-c", "a") and first.cwd == "/" and "X" not in first.env
    assert second.argv == ("/bin/bash", "-ec", "b &&   c") or second.argv[:2] == ("/bin/bash", "-ec")
    assert second.cwd == "/app" and second.env["X"] == "1"
    assert third.argv == ("d", "e f")


def test_sources_and_target_of_a_copy_are_read() -> None:
    found = after_from(
        'WORKDIR /app\nCOPY a.txt b.txt dir/\nCOPY --chown=root --chmod=755 run.sh /bin2/run\nADD ["a b", "."]'
    )
    first, second, third = [step for step in found.steps if isinstance(step, Copy)]
    assert (first.sources, first.target, first.into_folder) == (("a.txt", "b.txt"), "/app/dir", True)
    assert (second.target, second.into_folder, second.mode) == ("/bin2/run", False, 0o755)
    assert (third.sources, third.target, third.into_folder) == (("a b",), "/app", True)


def test_instructions_without_effect_under_harbor_are_ignored() -> None:
    assert after_from('CMD ["x"]\nENTRYPOINT x\nEXPOSE 80\nLABEL a=b\nHEALTHCHECK NONE').steps == []


def test_comments_blank_lines_and_lower_case_are_read() -> None:
    found = build("# syntax=docker/dockerfile:1\n\nfrom debian:12\n# RUN apt-get\nworkdir /app")
    assert found.workdir == "/app" and found.steps == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no FROM instruction"),
        ("FROM", "line 1: `FROM`: it has no arguments"),
        ("FROM $NONE", "it has no arguments after its variables"),
        ("FROM alpine:3", "`FROM alpine:3`: this image is not available"),
        ("FROM debian:11", "set accept_images: ['debian:11']"),
        ("RUN x", "expected FROM before it"),
        ("FROM debian:12 AS a\nFROM debian:12", "line 2: `FROM debian:12`: builds with several stages"),
        ("FROM debian:12\nSHELL []", "line 2: `SHELL []`: the list is empty"),
        ("FROM debian:12\nSHELL bash", "expected a list"),
        ('FROM debian:12\nSHELL ["bash", 1]', "expected a list of strings"),
        ("FROM debian:12\nRUN", "`RUN`: it has no arguments"),
        ("FROM debian:12\nRUN []", "the list is empty"),
        ("FROM debian:12\nRUN apt-get update && \\\n apt-get install x", "line 2: `RUN apt-get update"),
        ("FROM debian:12\nRUN pip install numpy", "`pip` needs a network"),
        ("FROM debian:12\nRUN set -e; python3 -m pip install x", "`python3 -m pip` needs a network"),
        ("FROM debian:12\nRUN X=1 sudo curl https://a.b | sh", "`curl` needs a network"),
        ('FROM debian:12\nRUN ["git", "clone", "x"]', "`git clone` needs a network"),
        ("FROM debian:12\nRUN --mount=type=cache,target=/x make", "--mount is not supported"),
        ("FROM debian:12\nRUN <<EOF\nx\nEOF", "here-documents are not supported"),
        ("FROM debian:12\nCOPY a", "expected a source and a target"),
        ("FROM debian:12\nCOPY --from=builder a b", "--from is not supported"),
        ("FROM debian:12\nCOPY --chmod=u+x a b", "octal"),
        ("FROM debian:12\nCOPY a /usr/local/bin/", "/usr/local/bin is read-only in a box"),
        ("FROM debian:12\nWORKDIR /bin/../usr", "/usr is read-only"),
        ("FROM debian:12\nADD https://a.b/c /c", "a box has no network"),
        ("FROM debian:12\nADD a.tar.gz /", "archives are not extracted"),
        ("FROM debian:12\nUSER nobody", "a box has one user, root"),
        ("FROM debian:12\nENV A", "expected NAME=value"),
        ("FROM debian:12\nENV =x y", "expected NAME=value"),
        ("FROM debian:12\nENV A=\0", "contains a NUL character"),
        ("FROM debian:12\nENV A='b", "No closing quotation"),
        ("FROM debian:12\nONBUILD RUN x", "this instruction is not supported"),
        ("FROM debian:12\nFRUM x", "`FRUM x`: this instruction is not supported"),
        ("# escape=`\nFROM debian:12", "escape character"),
        ("FROM debian:12\nRUN x \\", None),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_line(text: str, problem: str | None) -> None:
    if problem is None:
        assert len(build(text).steps) == 1
        return
    with pytest.raises(UnsupportedTask) as raised:
        build(text)
    assert problem in str(raised.value) and "environment/Dockerfile" in str(raised.value)


@pytest.mark.parametrize(
    ("image", "is_replaced"),
    [
        ("debian:12", True),
        ("debian:bookworm-slim", True),
        ("docker.io/library/debian:12", True),
        ("debian:12@sha256:00", True),
        ("debian", False),
        ("debian:11", False),
        ("ubuntu:24.04", False),
        ("python:3.11-slim-bookworm", True),
        ("python:3.11", True),
        ("python:3.12", False),
        ("python:3.11-alpine", False),
        ("example.com/debian:12", False),
    ],
)
def test_only_images_that_are_this_host_are_replaced(image: str, is_replaced: bool) -> None:
    assert HOST.replaces(image, ()) is is_replaced
    assert HOST.replaces(image, (f"{image[:6]}*",))


@pytest.mark.parametrize(
    "command",
    [
        "echo apt-get",
        "# pip install",
        "cat pip.txt",
        "curl -s http://localhost:8000",
        "grep curl x",
        "make uv=1",
        "./pip",
    ],
)
def test_words_that_are_not_commands_need_no_network(command: str) -> None:
    assert len(after_from(f"RUN true\nRUN {command}" if command[0] != "#" else f"RUN true\n{command}").steps) > 0
