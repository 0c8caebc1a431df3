"""What an answer claims: names, words, intermediate steps and lists around a value."""

from __future__ import annotations

import re

from rollyard.resources_servers.answers.latex import plain_spelling
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.grading import DATA, compare_answers, rows_of

FIND = "Find $x$."
Case = tuple[str, str, list[str]]


async def equal(workers: WorkerPool, cases: list[Case]) -> list[str]:
    """Return the answers that are equivalent to their gold answer."""
    return [
        answer
        for problem, gold, answers in cases
        for answer in answers
        if (await compare_answers(workers, gold, answer, problem)).equal
    ]


async def different(workers: WorkerPool, cases: list[Case]) -> list[str]:
    """Return the answers that are not equivalent to their gold answer."""
    equal_answers = await equal(workers, cases)
    return [answer for _, _, answers in cases for answer in answers if answer not in equal_answers]


async def test_an_expression_on_the_left_side_is_not_ignored(patient_workers: WorkerPool) -> None:
    cases = [
        (
            FIND,
            "7",
            ["-x = 7", "x^2 = 7", "2x = 7", r"\sqrt{x}=7", "1/x = 7", "|x| = 7", "x+1=7", r"\log x = 7", "e^x=7"],
        ),
        (
            FIND,
            "7",
            ["x > 7", r"x \ne 7", r"x \approx 7", "7 > x", r"x \geq 7", "-7 = -x", r"\frac{x}{2} = 7", "xy = 7"],
        ),
        ("Find $x$ if $x^2=49$.", "7", ["x^2 = 7"]),
        ("Solve $x^2 = 49$ for $x > 0$.", "7", ["x^2 = 7"]),
        (FIND, r"\frac{\pi}{4}", [r"\tan x = \pi/4", r"\tan x = \frac{\pi}{4}"]),
        ("Find $(x,y)$.", "(3,4)", ["(y,x) = (3,4)", "x=4, y=3", "(x,y)=(4,3)"]),
        ("Find $f(x)$.", "2x+3", ["y' = 2x+3", "f'(x) = 2x+3", "2f(x)=2x+3", "f(x)=3x+2"]),
        ("If $f(3)=5$, what is $f(2)$?", "7", ["f(3) = 7"]),
        (FIND, "x=5", ["2x=10", "x-5=0", "y=5", "-x=-5"]),
        (FIND, "y=2x+3", ["y' = 2x+3", "2y=2x+3", "-y=2x+3", "y>2x+3"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_a_name_or_the_requested_quantity_may_be_on_the_left_side(patient_workers: WorkerPool) -> None:
    cases = [
        ("Find $x^2$ if $x=3$.", "9", ["x^2 = 9", "9"]),
        ("What is $f(2)$?", "7", ["f(2) = 7", "f(2)=5+2=7"]),
        (r"Compute $\tan x$.", "2", [r"\tan x = 2"]),
        ("What is $a+b$?", "12", ["a+b=12"]),
        ("Find the sum of $a$ and $b$.", "12", ["a + b = 12"]),
        ("What is $|z|$?", "5", ["|z| = 5", r"|z| = \sqrt{3^2+4^2} = 5"]),
        ("Find $f'(x)$.", "2x+3", ["f'(x) = 2x+3"]),
        ("Find $f(x)$.", "2x+3", ["f(x) = 2x+3", "y=2x+3", "f(x) = 3 + 2x"]),
        ("What is angle ABC?", "60", [r"\angle ABC = 60", r"m\angle A = 60^\circ"]),
        (
            "Find it.",
            "5",
            ["AB = 5", r"\overline{AB} = 5", "|AB| = 5", "S_{10} = 5", "x_1 = 5", "P(A) = 5", "f(3) = 5"],
        ),
        (
            "Find it.",
            "5",
            [r"\text{Area} = 5", "[ABC] = 5", r"\text{Total cost} = 5", "The length of AB is 5", "5 = x"],
        ),
        (r"Compute $17^{-1} \pmod{83}$.", "44", [r"17^{-1} \equiv 44 \pmod{83}", r"44 \pmod{83}"]),
    ]
    assert await different(patient_workers, cases) == []


async def test_every_step_of_an_answer_must_hold(patient_workers: WorkerPool) -> None:
    valid = [
        ("Find the area.", r"9\pi", [r"A = \pi r^2 = 9\pi", r"A = \pi (3)^2 = 9\pi", r"9\pi \approx 28.27"]),
        (FIND, "5", [r"A = \frac{1}{2} \cdot 5 \cdot 2 = 5", r"AB = \sqrt{3^2+4^2} = 5", "10/2 = 5"]),
        (FIND, r"\sqrt{2}", [r"\sqrt{2} \approx 1.41", r"x=\sqrt{2}\approx 1.4142", r"\sqrt{2} \;(\approx 1.41)"]),
        ("Round to the nearest tenth.", "1.4", [r"\sqrt{2} \approx 1.4", r"x \approx 1.4", r"\text{about }1.4"]),
        ("", r"\frac{11}{36}", [r"\frac{11}{36} \approx 30.6\%"]),
    ]
    invalid = [
        (FIND, "2", ["7 = 2", r"2 = \sqrt2", "x = 2 = 3", "2 = 3", "2 = 2 = 3"]),
        (FIND, "600", [r"7 \approx 600"]),
        (FIND, r"\sqrt{2}", [r"2 = \sqrt2", r"\sqrt{2} \approx 1.5", r"1.5 \approx \sqrt{2}"]),
        ("Find the area.", r"9\pi", [r"9\pi \approx 30", r"A = 9\pi = 27", r"\approx 28.27"]),
    ]
    assert (await different(patient_workers, valid), await equal(patient_workers, invalid)) == ([], [])


async def test_several_answers_are_wrong_unless_the_gold_answer_is_that_list(patient_workers: WorkerPool) -> None:
    too_many = [
        (FIND, "18", ["18 and 19", "18 (or maybe 19)", "18, 19", "18; 19", "between 18 and 20", "18-20"]),
        (FIND, "5", [r"5 \text{ or } 6", "5 or 6", "6, not 5", "five or six", "5 to 6", r"\pm 5", "5 | 6"]),
        (FIND, "2,3", ["x=2 and x=4", "2", "2,3,4", "x=2 or x=3 or x=4"]),
    ]
    lists = [
        (
            FIND,
            "2,3",
            ["x=2 and x=3", "x=2, x=3", r"x \in \{2,3\}", "2 and 3", "x = 2, 3", "x_1=2, x_2=3", "x=3 or x=2"],
        ),
        (FIND, "-3, -2, -1", ["-3, -2, and -1", r"\{-1,-2,-3\}", "x=-3, x=-2, x=-1"]),
        ("Find $(x,y)$.", "(3,4)", ["(x,y) = (3,4)", "x=3,y=4", "y=4, x=3", "x=3 and y=4", "3,4"]),
        (FIND, "x=2, y=3", ["y=3, x=2", "(2,3)", "(x,y)=(2,3)"]),
        (FIND, r"\frac{639}{40}", [r"15\frac{39}{40}, \frac{639}{40}"]),
    ]
    assert (await equal(patient_workers, too_many), await different(patient_workers, lists)) == ([], [])


CHANGED_BY_WORDS = [
    r"5 \text{ squared}", r"\text{half of } 5", r"\text{half of } 10", r"5 \text{ lakh}", r"5 \text{ factorial}",
    "minus 5", "5 dozen", "maybe 5", "about 5", "at least 5", "more than 5", "not 5", r"5 \text{ pairs}", "5 or so",
    "5 hundred", "approximately 5", r"\text{twice } 5", "5 percent more", "5ish", "the square root of 5",
    "multiple of 5", "a divisor of 5", "up to 5", "5 thirds", "5k", "negative 5", "5 and a half", "five or six",
    "I think 5", "~5", r"\sim 5", "5 give or take", "a quarter of 5", "5 per hundred", "root 5", "5 crore",
    "5 thousandths", "5?", "5!",
]  # fmt: skip


async def test_a_word_that_may_change_the_number_makes_the_answer_wrong(patient_workers: WorkerPool) -> None:
    problem = "At least half of the pairs, about 5 or so, are not more than twice a quarter. How many thirds? Find $x$."
    assert await equal(patient_workers, [("", "5", CHANGED_BY_WORDS)]) == []
    assert (
        await equal(patient_workers, [(problem, "5", [answer for answer in CHANGED_BY_WORDS if "third" not in answer])])
        == []
    )


async def test_units_and_nouns_of_the_problem_may_accompany_a_number(patient_workers: WorkerPool) -> None:
    cases = [
        (
            FIND,
            "5",
            ["five", r"\text{five}", "5 units", "5 apples", "exactly 5", "USD 5", "5 USD", "a total of 5 eggs"],
        ),
        (
            FIND,
            "5",
            ["There are 5 ways", "Answer: 5", r"5 \text{ square units}", r"5\text{种}", "5 cookies each", "5 left"],
        ),
        ("How many wugs does she see?", "5", ["5 wugs", "5 wugs in total", r"5 \text{ wug}"]),
        ("How many pairs are there?", "5", ["5 pairs", r"5 \text{ pairs}"]),
        ("How many dozen eggs?", "5", ["5 dozen"]),
        ("How many more eggs has she?", "5", ["5 more eggs", "5 more"]),
        (FIND, "120", ["one hundred twenty", "one hundred and twenty"]),
        (FIND, "-5", ["minus 5", r"\text{negative }5"]),
    ]
    assert await different(patient_workers, cases) == []
    assert await equal(patient_workers, [(FIND, "5", ["5 wugs"]), (FIND, "20", ["twenty-one", "twenty or so"])]) == []


async def test_a_unit_other_than_the_problems_makes_the_answer_wrong(patient_workers: WorkerPool) -> None:
    cases = [
        ("In cents, what does it cost?", "29", [r"\$29", "29 dollars"]),
        ("It is 2 kilometers away. How many meters is that?", "10", [r"10 \text{ km}"]),
        ("It costs $19.50. What was the price?", "26", ["26 cents"]),
        ("By what percent does it decrease?", "10", [r"1000\%"]),
    ]
    right_unit = [
        ("In cents, what does it cost?", "29", ["29", "29 cents"]),
        ("It costs $19.50. What was the price?", "26", [r"\$26", "26 dollars"]),
        ("By what percent does it decrease?", "10", [r"10\%", "10"]),
    ]
    assert (await equal(patient_workers, cases), await different(patient_workers, right_unit)) == ([], [])


async def test_sets_of_numbers_are_parsed_in_common_notations(patient_workers: WorkerPool) -> None:
    cases = [
        (
            FIND,
            r"(-\infty,\infty)",
            ["all real numbers", r"x \in \mathbb{R}", "ℝ", r"-\infty < x < \infty"],
        ),
        (
            FIND,
            r"(-\infty,2)\cup(2,\infty)",
            [r"x \ne 2", r"\mathbb{R} \setminus \{2\}", r"\text{all real numbers except }2"],
        ),
        (FIND, r"\emptyset", ["no solution", r"\text{no real solutions}", "none", r"\{\}"]),
        (FIND, r"\text{no solution}", [r"\emptyset", "none"]),
        (FIND, r"\infty", [r"\text{infinity}", "infinity", r"+\infty"]),
        (FIND, "[2,5)", ["[2,5[", r"x\in[2,5[", r"2 \le x < 5"]),
        (FIND, "(2,5)", ["]2,5[", "2<x<5", "5>x>2", "(2;5)"]),
        (FIND, r"[-3,-2]\cup[0,1]", [r"-3 \le x \le -2 \text{ or } 0 \le x \le 1"]),
        (FIND, r"[0,\infty)", [r"f(x) \ge 0", r"x \geq 0"]),
    ]
    assert await different(patient_workers, cases) == []
    assert await equal(patient_workers, [(FIND, "(2,5)", ["[2,5[", "2<x<6", r"2 \le x \le 5"])]) == []


async def test_a_choice_is_its_letter_with_or_without_its_value(patient_workers: WorkerPool) -> None:
    same_choice = [
        "C",
        "(C)",
        r"(C)\ 15",
        r"\textbf{(C) }15",
        "C)",
        "C.",
        r"\text{C) }15",
        r"\text{Option C}",
        "Choice (C)",
        "C. 15",
    ]
    wrong = ["D", "(D) C", "C or D", "(C) or (D)", "not C", r"\text{(A) or (C)}", r"\text{(D)}\ 15", "15", "ABC"]
    assert await different(patient_workers, [(FIND, r"\text{(C)}", same_choice)]) == []
    assert await equal(patient_workers, [(FIND, r"\text{(C)}", wrong)]) == []
    assert await different(patient_workers, [("Which? (A) 3 (C) 15", "15", [r"(C)\ 15", r"\textbf{(C) }15"])]) == []


async def test_repeating_decimals_thousands_and_times_are_parsed_in_every_notation(patient_workers: WorkerPool) -> None:
    cases = [
        (FIND, r"\frac13", [r"0.333\ldots", "0.333...", r"0.\dot3", r"0.\dot{3}", "0.3333…", r"0.\bar{3}", "0.(3)"]),
        (FIND, r"\frac17", [r"0.\dot{1}4285\dot{7}", "0.142857142857..."]),
        (FIND, r"\frac16", [r"0.1\overline{6}", "0.1666...", r"0.1\dot6"]),
        (FIND, "12345", [r"12\,345", "12 345", "12{,}345", "12\u202f345", "12\u2009345", r"12\;345", r"12,\!345"]),
        (FIND, r"\text{4:30 p.m.}", ["4:30 PM", "16:30"]),
        (FIND, "x^2+2x+1", ["x^{2}+2x^{1}+1"]),
    ]
    assert await different(patient_workers, cases) == []
    wrong = [(FIND, r"\frac13", ["0.334...", r"0.\dot4", "0.3..."]), (FIND, r"\text{4:30 p.m.}", ["15:30", "4:30 AM"])]
    assert await equal(patient_workers, wrong) == []


async def test_the_letter_of_a_point_may_be_written_as_an_option(patient_workers: WorkerPool) -> None:
    problem = "Which of the labelled points lies farthest from the origin?"
    assert await different(patient_workers, [(problem, "F", ["F", "(F)", r"\text{(F)}", r"\textbf{F}"])]) == []
    assert await equal(patient_workers, [(problem, "F", ["(E)", r"\text{(E) or (F)}"])]) == []


FORMULA = re.compile(r"(?<!\\)\$([^$]+)(?<!\\)\$|\\\[(.+?)\\\]", re.DOTALL)


async def accepted_formulas(workers: WorkerPool, rows: list[dict[str, str]]) -> list[tuple[str, str]]:
    """(gold answer, formula) for each formula of a problem that is wrongly accepted as its answer."""
    accepted = []
    for row in rows:
        for match in FORMULA.finditer(row["problem"]):
            formula, gold = match[1] or match[2], row["answer"]
            if (
                plain_spelling(formula).strip("., ") != plain_spelling(gold)
                and (await compare_answers(workers, gold, formula, row["problem"])).equal
            ):
                accepted.append((gold, formula))
    return accepted


async def test_a_formula_of_the_problem_is_not_its_answer(patient_workers: WorkerPool) -> None:
    rows = rows_of(DATA / "math" / "math500.jsonl")[::10]
    assert await accepted_formulas(patient_workers, rows) == []
    cases = [
        (
            r"Compute $\binom{9}{2}$.",
            "36",
            [r"\binom{9}{2}", r"\dbinom92", r"{9 \choose 2}", r"\frac{9!}{7!2!}", "C(9,2)"],
        ),
        (r"What is $10^8-2\cdot 10^5+1$?", "99800001", [r"10^8-2\cdot 10^5+1", r"10^8 - 2\times10^5 + 1"]),
        (r"Write $\frac{4}{8}$ in lowest terms.", r"\frac12", [r"\frac48", "4/8"]),
        (r"Express $0.\overline{3}$ as a fraction.", r"\frac13", [r"0.\overline{3}"]),
        (r"Simplify $\sqrt{12}$.", r"2\sqrt{3}", [r"\sqrt{12}"]),
        ("Solve $|x-3|<5$.", "(-2,8)", ["|x-3|<5", "x-3<5", "-5<x-3<5"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_functions_and_long_arithmetic_that_the_gold_answer_lacks_are_not_final(
    patient_workers: WorkerPool,
) -> None:
    cases = [
        (FIND, "120", ["5!", r"\sum_{k=1}^{15} k", r"5 \cdot 4 \cdot 3 \cdot 2 \cdot 1", r"\prod_{k=1}^5 k"]),
        (FIND, "3", [r"\lfloor \pi \rfloor", r"\gcd(6,9)", r"\log_2 8", "|-3|", r"\max(1,3)", r"10 \bmod 7"]),
        (
            FIND,
            "3",
            [r"3\sin 90^\circ", r"\lim_{x\to 3} x", r"\int_0^3 1 dx", r"\text{lcm}(1,3)", r"\lceil 2.5 \rceil"],
        ),
        (FIND, "18", ["5(-2)^2+3(-2)+4", "(16-3-4) \\cdot 2"]),
        (FIND, r"\frac12", [r"\sin 30^\circ", r"\cos 60^\circ"]),
    ]
    assert await equal(patient_workers, cases) == []


async def test_an_exact_value_that_can_be_simplified_slightly_is_final(patient_workers: WorkerPool) -> None:
    cases = [
        (FIND, "1024", ["2^{10}"]),
        (FIND, "12", [r"3\cdot 4", "2+10"]),
        (FIND, r"\frac92", [r"\frac{18}{4}", "4.5", r"4\frac12"]),
        (FIND, r"4\sqrt2", [r"2\sqrt{8}"]),
        (FIND, r"\frac{\sqrt3}{2}", [r"\frac{\sqrt{12}}{4}", r"\sqrt{3}/2", r"\sqrt{\frac{3}{4}}"]),
        (r"Compute $\binom{9}{2}$.", "36", [r"\binom{9}{2} = 36", r"\binom{9}{2} = \frac{9 \cdot 8}{2} = 36"]),
        (FIND, r"\log_2 3", [r"\frac{\log 3}{\log 2}"]),
        (FIND, r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", [r"\frac{1}{3}\begin{pmatrix} -1 \\ 2 \end{pmatrix}"]),
    ]
    assert await different(patient_workers, cases) == []


async def test_an_answer_must_have_the_required_form(patient_workers: WorkerPool) -> None:
    wrong = [
        ("Factor $x^2-1$.", "(x-1)(x+1)", ["x^2-1", "-1+x^2"]),
        ("Factor $2x^2-2$.", "2(x-1)(x+1)", ["2(x^2-1)", "2x^2-2"]),
        ("Expand $(x+1)^2$.", "x^2+2x+1", ["(x+1)^2", "(x+1)(x+1)", "x(x+2)+1"]),
        ("Simplify $(3x+2)-(x-1)$.", "2x+3", ["3x+2-x+1", "(3x+2)-(x-1)"]),
    ]
    right = [
        ("Factor $x^2-1$.", "(x-1)(x+1)", ["(x+1)(x-1)", r"(x-1)\cdot(x+1)"]),
        ("Expand $(x+1)^2$.", "x^2+2x+1", ["1+2x+x^2", "(x+1)^2 = x^2+2x+1"]),
        ("Simplify $(3x+2)-(x-1)$.", "2x+3", ["3+2x"]),
    ]
    assert (await equal(patient_workers, wrong), await different(patient_workers, right)) == ([], [])


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
