"""Tasks of inspect_ai for the tests, written as its users write them."""

from inspect_ai import Task, solver, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, get_model
from inspect_ai.scorer import Score, Scorer, Target, accuracy, choice, includes, match, mean, model_graded_qa, scorer
from inspect_ai.solver import Generate, Solver, TaskState, chain_of_thought, generate, multiple_choice, prompt_template
from inspect_ai.tool import Tool, ToolError, tool

QUESTION = Sample(id="q", input="What is 6 times 7?", target="42")


@tool
def multiply() -> Tool:
    async def execute(x: int, y: int) -> int:
        """Multiply two numbers.

        Args:
            x: First number.
            y: Second number.
        """
        if x < 0:
            raise ToolError("x must not be negative")
        if x == 13:
            raise RuntimeError("this host is broken")
        return x * y

    return execute


@task
def plain(question: str = "What is 6 times 7?") -> Task:
    return Task(
        dataset=[Sample(id="q", input=question, target="42")],
        solver=[prompt_template("{prompt}\nAnswer with a number."), chain_of_thought(), generate()],
        scorer=[match(), includes()],
    )


@task
def tools() -> Task:
    return Task(dataset=[QUESTION], solver=[solver.use_tools(multiply()), generate()], scorer=match(numeric=True))


@task
def chat() -> Task:
    messages = [
        ChatMessageSystem(content="You add."),
        ChatMessageUser(content="1 + 1?"),
        ChatMessageAssistant(content="2"),
        ChatMessageUser(content="2 + 40?"),
    ]
    return Task(dataset=[Sample(input=messages, target="42")], scorer=includes())


@task
def options() -> Task:
    sample = Sample(input="Which is even?", choices=["one", "two", "three"], target="B")
    return Task(dataset=[sample], solver=multiple_choice(), scorer=choice())


@task
def agent(attempts: int = 1) -> Task:
    return Task(dataset=[QUESTION], solver=react(tools=[multiply()], attempts=attempts), scorer=includes())


@task
def graded() -> Task:
    return Task(dataset=[QUESTION], solver=generate(), scorer=model_graded_qa())


@solver.solver
def twice() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        state = await generate(state)
        state.messages.append(ChatMessageUser(content="Are you sure?"))
        return await generate(state)

    return solve


@task
def several() -> Task:
    return Task(dataset=[QUESTION], solver=twice(), scorer=includes())


@solver.solver
def broken() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        raise RuntimeError("no such file")

    return solve


@task
def failing() -> Task:
    return Task(dataset=[QUESTION], solver=broken(), scorer=includes())


@task
def boxed() -> Task:
    return Task(dataset=[QUESTION], sandbox="docker", scorer=includes())


@task
def files() -> Task:
    return Task(dataset=[Sample(id="f", input="?", target="!", files={"a.txt": "a"})], scorer=includes())


@task
def unscored() -> Task:
    return Task(dataset=[QUESTION])


@scorer(metrics={"style": [mean()], "content": [mean()]})
def parts() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        content = 1.0 if target.text in state.output.completion else 0.0
        return Score(value={"style": 0.5, "content": content}, answer=state.output.completion)

    return score


@task
def dictionary() -> Task:
    return Task(dataset=[QUESTION], scorer=parts())


@scorer(metrics=[accuracy()])
def remembers() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        called = [message.function for message in state.messages if message.role == "tool"]
        return Score(value="C" if called == ["multiply"] else "I")

    return score


@task
def trajectory() -> Task:
    return Task(dataset=[QUESTION], solver=[solver.use_tools(multiply()), generate()], scorer=remembers())


@scorer(metrics=[accuracy()])
def asks_by_name() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        output = await get_model(role="grader").generate(f"Is {state.output.completion} right?")
        return Score(value="C" if output.completion == "yes" else "I")

    return score


@task
def role() -> Task:
    return Task(dataset=[QUESTION], scorer=asks_by_name())


@scorer(metrics=[mean()])
def nothing() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        return Score(value=float("nan") if state.output.completion else 0.0)

    return score


@task
def nan() -> Task:
    return Task(dataset=[QUESTION], scorer=nothing())
