"""What models write around a program, by name. `{code}` stands for the program, `f` is what it defines.

Each of them came up as a right answer that was not found, or would have been.
"""

TEXTS = {
    "fence_of_a_version": "```python3.11\n{code}```",
    "fence_in_capitals": "```Python3\n{code}```\nDone.",
    "fence_with_braces": "```{{.python}}\n{code}```",
    "fence_of_ipython": "```ipython3\n{code}```",
    "fence_of_tildes": "Here:\n~~~\n{code}~~~\nDone.",
    "fence_of_four": "````python\n{code}````",
    "fence_that_closes_behind_the_last_line": "```python\n{code}\nx = 1```\n\nIt doubles `x`, as `f` should.",
    "fence_that_closes_for_windows": "```python\n{code}```\r\nThis is it.\r\n",
    "fence_in_a_quotation": "> ```python\n> x = 1\n> ```\n\n```python\n{code}```",
    "fences_in_a_docstring": '```python\n"""\nSo:\n```\nf(1)\n```\n"""\n{code}```\nThat is all.',
    "fences_in_comments": "```python\nx = 1\n# ```\n# f(1)\n# ```\n{code}```\nThat is all.",
    "fence_without_a_language_before_one_with": "```\n{code}```\nUse it so:\n```python\nprint(1)\n```",
    "output_that_calls_itself_python": "```python\n{code}```\nOutput:\n```python\n[1, 2, ...\n```",
    "output_without_a_language": "```\n{code}```\nOutput:\n```\nThe result is 5\n```",
    "second_block_that_breaks_off": "```python\n{code}```\nand a test:\n```python\ndef test_",
    "commands_of_a_notebook": "```python\n%matplotlib inline\n!pip install x\n{code}```",
    "console_behind_the_program": "```python\n{code}\n>>> f(1)\n1\n```",
    "prose_in_the_block": "```python\n{code}\nThis is right, isn't it?\n```",
    "prose_that_begins_like_python": "class of problems, this is easy.\nimport the best:\n\n{code}\nThat's all.",
    "assignment_before_the_function": "Here it is:\n\nTWO = 2\n{code}\nThat's all.",
    "byte_order_mark": "\ufeff{code}",
    "byte_order_mark_in_the_fence": "```python\n\ufeff{code}```",
    "invisible_characters": "```python\n{code}\u200b\n```",
    "tags_of_an_answer": "<answer>\n{code}</answer>",
    "future_import_in_a_later_block": "```py\nx = 1\n```\n```py\nfrom __future__ import annotations\n{code}```",
    "thinking_in_code": "<think>\n```python\ndef f(): return 1\n```\n</think>\n```python\n{code}```",
}
DEMONSTRATIONS = {
    "asks_for_input": "x = int(input('x? '))\nprint(f(x))",
    "ends_the_program": "import sys\nprint(f(1))\nsys.exit(0)",
    "calls_it_wrongly": "print(f('a', 'b', 'c'))",
    "tests_itself_wrongly": "assert f(1) == 17",
    "runs_unittest": "import unittest\nclass T(unittest.TestCase):\n    pass\nunittest.main()",
    "imports_itself": "from solution import f\nprint(f(1))",
    "imports_what_is_not_there": "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_f(x): assert f(x)",
    "uses_a_placeholder": "result = f(your_input)",
    "raises_under_doctest": "import doctest\ndoctest.testmod(raise_on_error=True)\nraise SystemExit",
}
"""Code after a correct function that raises when it is run."""
