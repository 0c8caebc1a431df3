"""Texts that models write around a program. `{code}` stands for the program, which defines `f`.

Each text is a right answer that the extraction once missed or might miss.
"""

TEXTS = {
    "fence_with_a_version": "```python3.11\n{code}```",
    "fence_in_capitals": "```Python3\n{code}```\nDone.",
    "fence_with_braces": "```{{.python}}\n{code}```",
    "ipython_fence": "```ipython3\n{code}```",
    "tilde_fence": "Here:\n~~~\n{code}~~~\nDone.",
    "fence_of_four_backquotes": "````python\n{code}````",
    "fence_closed_on_the_last_line": "```python\n{code}\nx = 1```\n\nIt doubles `x`, as `f` should.",
    "fence_closed_with_a_windows_line_ending": "```python\n{code}```\r\nThis is it.\r\n",
    "fence_in_a_quotation": "> ```python\n> x = 1\n> ```\n\n```python\n{code}```",
    "fences_in_a_docstring": '```python\n"""\nSo:\n```\nf(1)\n```\n"""\n{code}```\nThat is all.',
    "fences_in_comments": "```python\nx = 1\n# ```\n# f(1)\n# ```\n{code}```\nThat is all.",
    "fence_without_a_language_before_one_with": "```\n{code}```\nUse it so:\n```python\nprint(1)\n```",
    "output_fenced_as_python": "```python\n{code}```\nOutput:\n```python\n[1, 2, ...\n```",
    "output_without_a_language": "```\n{code}```\nOutput:\n```\nThe result is 5\n```",
    "truncated_second_block": "```python\n{code}```\nand a test:\n```python\ndef test_",
    "notebook_commands": "```python\n%matplotlib inline\n!pip install x\n{code}```",
    "console_session_after_the_program": "```python\n{code}\n>>> f(1)\n1\n```",
    "prose_in_the_block": "```python\n{code}\nThis is right, isn't it?\n```",
    "prose_that_begins_like_python": "class of problems, this is easy.\nimport the best:\n\n{code}\nThat's all.",
    "assignment_before_the_function": "Here it is:\n\nTWO = 2\n{code}\nThat's all.",
    "byte_order_mark": "\ufeff{code}",
    "byte_order_mark_in_the_fence": "```python\n\ufeff{code}```",
    "invisible_characters": "```python\n{code}\u200b\n```",
    "answer_tags": "<answer>\n{code}</answer>",
    "future_import_in_a_later_block": "```py\nx = 1\n```\n```py\nfrom __future__ import annotations\n{code}```",
    "code_in_reasoning": "<think>\n```python\ndef f(): return 1\n```\n</think>\n```python\n{code}```",
}
FAILING_CODE = {
    "asks_for_input": "x = int(input('x? '))\nprint(f(x))",
    "ends_the_program": "import sys\nprint(f(1))\nsys.exit(0)",
    "calls_it_wrongly": "print(f('a', 'b', 'c'))",
    "tests_itself_wrongly": "assert f(1) == 17",
    "runs_unittest": "import unittest\nclass T(unittest.TestCase):\n    pass\nunittest.main()",
    "imports_itself": "from solution import f\nprint(f(1))",
    "imports_a_missing_module": "import pytest\n@pytest.mark.parametrize('x', [1])\ndef test_f(x): assert f(x)",
    "uses_a_placeholder": "result = f(your_input)",
    "raises_under_doctest": "import doctest\ndoctest.testmod(raise_on_error=True)\nraise SystemExit",
}
"""Code after a correct function that raises when it is run."""
