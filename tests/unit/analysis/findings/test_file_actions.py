"""What tool calls do to files, read from their arguments."""

from __future__ import annotations

import time

import orjson
import pytest

from rollyard.analysis.findings.file_actions import FileAction, Verb, file_actions

SHELL: dict[str, list[tuple[Verb, str]]] = {
    "cat a.txt | head -n 3": [(Verb.READ, "a.txt"), (Verb.READ, "3")],
    "cd /app/src && cat ../b.txt": [(Verb.READ, "/app/b.txt")],
    "echo 1 > a.txt; echo 2 >> b.txt 2>&1": [(Verb.WRITE, "a.txt"), (Verb.APPEND, "b.txt")],
    "patch -p1 < fix.diff": [(Verb.READ, "fix.diff")],
    "cat > a.py <<'END'\nrm -rf tests\nEND\nrm b.py": [(Verb.WRITE, "a.py"), (Verb.DELETE, "b.py")],
    "rm -rf build\npytest tests/a.py": [(Verb.DELETE, "build")],
    "sed -i 's/a; b/c/' a.py b.py": [(Verb.EDIT, "a.py"), (Verb.EDIT, "b.py")],
    "sed -n 1,3p a.py": [(Verb.READ, "1,3p"), (Verb.READ, "a.py")],
    "cp a.py b.py": [(Verb.READ, "a.py"), (Verb.WRITE, "b.py")],
    "git mv a.py b.py": [(Verb.DELETE, "a.py"), (Verb.WRITE, "b.py")],
    "bash -lc 'cat a.txt'": [(Verb.READ, "a.txt")],
    "X=1 sudo ./run.sh --all": [(Verb.READ, "run.sh")],
    "find . -name 'test_*.py' -delete": [(Verb.DELETE, "."), (Verb.DELETE, "test_*.py")],
    "python -c \"open('a.txt', 'w').write('1')\"": [(Verb.WRITE, "a.txt")],
    "echo 'an open quote > a.txt": [],
}
CALLS: dict[str, tuple[str, object, FileAction]] = {
    "a view of an editor": ("editor", {"command": "view", "path": "a.py"}, FileAction(Verb.READ, "a.py", None, "")),
    "a replacement": (
        "editor",
        {"command": "str_replace", "path": "a.py", "old_str": "x", "new_str": "y"},
        FileAction(Verb.EDIT, "a.py", "x", "y"),
    ),
    "a new file": ("write_file", {"path": "./a.py", "content": "x"}, FileAction(Verb.WRITE, "a.py", None, "x")),
    "a nested operation": ("run", {"op": {"type": "read", "path": "a.py"}}, FileAction(Verb.READ, "a.py", None, "")),
    "a list of words": ("run", {"cmd": ["rm", "-r", "a b"]}, FileAction(Verb.DELETE, "a b", None, "rm -r 'a b'")),
    "a patch": (
        "patch",
        {"input": "*** Update File: a.py\n-x\n+y\n"},
        FileAction(Verb.EDIT, "a.py", "x", "y"),
    ),
}


@pytest.mark.parametrize("text", SHELL)
def test_actions_of_shell_commands(text: str) -> None:
    found = file_actions("bash", orjson.dumps({"command": text}).decode())
    assert [(one.verb, one.path) for one in found] == SHELL[text]


@pytest.mark.parametrize("name", CALLS)
def test_actions_of_calls(name: str) -> None:
    tool, arguments, expected = CALLS[name]
    assert file_actions(tool, orjson.dumps(arguments).decode()) == [expected]


@pytest.mark.parametrize(
    "piece", ["cat a/", "'", "<<A\n", "(", "echo '\n", "open('a", "[[", "a > ", "--- a/x\n", "\\\n"]
)
def test_long_arguments_take_linear_time(piece: str) -> None:
    def cpu_s(size: int) -> float:
        text = orjson.dumps({"command": piece * (size // len(piece))}).decode()
        start = time.process_time()
        file_actions("bash", text)
        return time.process_time() - start

    assert cpu_s(20_000) < 40 * max(cpu_s(2_000), 0.01)


def test_arguments_that_are_no_json_are_a_command() -> None:
    assert [one.path for one in file_actions("bash", "rm a.txt")] == ["a.txt"]
