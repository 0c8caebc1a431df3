"""Two small tasks of inspect_ai, for tests and as an example: a sum with a tool, and a question without one."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, system_message, use_tools
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    async def execute(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: First number.
            y: Second number.
        """
        return str(x + y)

    return execute


@task
def sums(count: int = 5) -> Task:
    """Sums of two numbers that grow from sample to sample."""
    pairs = [(17 * number + 5, 23 * number + 8) for number in range(count)]
    samples = [Sample(id=f"sum_{x}_{y}", input=f"What is {x} + {y}?", target=str(x + y)) for x, y in pairs]
    return Task(
        dataset=samples,
        solver=[system_message("Use the tool `add`, then answer with the number only."), use_tools(add()), generate()],
        scorer=match(numeric=True),
    )


@task
def capitals() -> Task:
    """Capitals of countries; no tools."""
    pairs = [("France", "Paris"), ("Japan", "Tokyo"), ("Peru", "Lima")]
    samples = [Sample(input=f"What is the capital of {country}?", target=city) for country, city in pairs]
    return Task(dataset=samples, solver=generate(), scorer=includes())
