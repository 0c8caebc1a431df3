"""What an answer claims: names, words, intermediate steps and lists around a value."""

from __future__ import annotations

from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.grading import compare_answers

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
