"""Answers in the context of their problem: left sides, residues, units, unfinished arithmetic."""

from __future__ import annotations

from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.test_claims import different, equal

DERIVATIVE = "Let $f(x) = x^3 + 4x$. Find $f'(x)$."
REMAINDER = "Find the remainder when $2^8$ is divided by 5."


async def test_another_quantity_of_the_problem_is_not_the_requested_one(patient_workers: WorkerPool) -> None:
    cases = [
        ("Let $a+b = 7$ and $ab = 3$. Find $a^2+b^2$.", "43", ["a=43", "ab=43", "b = 43"]),
        ("If $h(x) = ax+b$ and $h(1) = 5$, find $h(6)$.", "15", ["h(x)=15", "h(5)=15", "x=15"]),
        (r"If $\tan \theta = 7$, find $\tan 2 \theta$.", r"-\frac{7}{24}", [r"\theta = -\frac{7}{24}"]),
        (r"If $\angle AHB = 132^\circ$, what is $\angle ACB$?", r"48^\circ", [r"\angle AHB = 48^\circ"]),
        (DERIVATIVE, "3x^2+4", ["f(x)=3x^2+4", "f''(x)=3x^2+4", "f^{-1}(x)=3x^2+4"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_the_requested_quantity_may_be_named_in_any_notation(patient_workers: WorkerPool) -> None:
    cases = [
        ("Let $a+b = 7$ and $ab = 3$. Find $a^2+b^2$.", "43", ["a^2+b^2=43", "a^2+b^2 = 49-6 = 43"]),
        (DERIVATIVE, "3x^2+4", ["f'(x)=3x^2+4", r"f^{\prime}(x)=3x^2+4", r"\frac{df}{dx}=3x^2+4"]),
        (r"If $y = x^2$, find $\frac{dy}{dx}$.", "2x", ["y'=2x", r"\dfrac{dy}{dx}=2x"]),
        ("Find the roots of $x^2-4x+4$.", "2", ["x=2"]),
        ("If $h(x) = 2x+3$, find $h(6)$.", "15", ["h(6) = 2(6)+3 = 15"]),
    ]
    assert await different(patient_workers, cases) == []


async def test_a_residue_may_be_written_as_a_congruence_with_the_problems_modulus(patient_workers: WorkerPool) -> None:
    right = [r"2^8 \equiv 1 \pmod 5", r"2^8 = 256 \equiv 1 \pmod{5}", r"256 \bmod 5 = 1", r"1 \pmod 5"]
    assert await different(patient_workers, [(REMAINDER, "1", right)]) == []
    assert await equal(patient_workers, [(REMAINDER, "1", [r"2^8 \equiv 1 \pmod 3", "2^8=1", r"256 \equiv 1"])]) == []


async def test_a_number_with_a_base_equals_its_value_in_a_chain(patient_workers: WorkerPool) -> None:
    problem = "Convert $1011_2$ to base 10."
    assert (
        await different(patient_workers, [(problem, "11", ["1011_2=11", "1011_2 = 8+2+1 = 11", "1011_2=11_{10}"])])
        == []
    )
    assert await equal(patient_workers, [(problem, "11", ["1011_2", "111_2 = 11"])]) == []


async def test_arithmetic_on_the_numbers_of_the_problem_is_unfinished(patient_workers: WorkerPool) -> None:
    cases = [
        ("Compute $91^2$ in your head.", "8281", [r"91\cdot 91"]),
        ("She walks 15 miles in 2.5 hours. How fast is she?", "6", ["15/2.5", r"\frac{15}{2.5}", r"15 \div 2.5"]),
        ("His grandfather was 56 when he was born.", "8", ["64 - 56"]),
        (r"Simplify $\sqrt{242}$.", r"11\sqrt2", [r"\sqrt{121}\sqrt{2}", r"\frac{1}{2}\sqrt{968}"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_a_percent_a_degree_or_a_prime_that_the_problem_does_not_mention_is_rejected(
    patient_workers: WorkerPool,
) -> None:
    problem = "How many bacteria are there?"
    assert (
        await equal(patient_workers, [(problem, "12", [r"12\%", r"12^\circ", "12'", "--12", "12:1", "12 percent"])])
        == []
    )
    right = [("What percent are red?", "12", [r"12\%"]), ("Find the angle in degrees.", "12", [r"12^\circ"])]
    assert await different(patient_workers, right) == []


async def test_sets_may_use_excluded_points_absolute_values_and_outward_brackets(patient_workers: WorkerPool) -> None:
    problem = "Solve the inequality."
    cases = [
        (problem, r"(-\infty,-2)\cup(-2,3)\cup(3,\infty)", [r"x\ne -2,3", r"x\neq 3 \text{ and } x\neq -2"]),
        (problem, r"(0,9)\cup(9,36)", [r"0<x<36, x\ne 9"]),
        (problem, r"(-\infty,-8)\cup(8,\infty)", ["|m|>8", r"]-\infty,-8[\cup]8,\infty["]),
        (problem, r"(\frac{3}{5},\frac{8}{3}]", [r"]\frac35;\frac83]"]),
    ]
    assert await different(patient_workers, cases) == []
    wrong = [
        (problem, "2,3", ["2<x<3"]),
        (problem, r"(-\sqrt3,\sqrt3)", [r"\pm\sqrt3"]),
        ("Solve $|m|>8$.", r"(-\infty,-8)\cup(8,\infty)", ["|m|>8"]),
    ]
    assert await equal(patient_workers, wrong) == []


async def test_typesetting_does_not_change_an_answer(patient_workers: WorkerPool) -> None:
    cases = [
        ("", "6", [r"\underline{6}", r"\text{x = 6}"]),
        ("", "1:1", ["1{:}1"]),
        ("", "4.5", ["4{,}5"]),
        ("", "10,080", ["10{,}080"]),
        ("What is the cost in cents?", "29", ["29¢", r"29\text{¢}"]),
        ("", r"\frac \pi4 + 2", [r"2+\frac{\pi}{4}"]),
        ("", "-221_3", ["-(221)_3"]),
        ("", "13", ["13 英里", "13 миль"]),
    ]
    assert await different(patient_workers, cases) == []


async def test_a_scale_after_a_formula_changes_it(patient_workers: WorkerPool) -> None:
    assert await equal(patient_workers, [("", r"9\pi", [r"9\pi\text{ thousand}"])]) == []
