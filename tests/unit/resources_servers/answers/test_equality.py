"""Answers that are equivalent to the gold answer, and answers that are not."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rollyard.resources_servers.answers.equality import compare_without_algebra
from rollyard.resources_servers.answers.quantity import quantity, unit_of
from rollyard.resources_servers.answers.worker_pool import WorkerPool
from tests.unit.resources_servers.answers.grading import compare_answers


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        (
            r"\frac{1}{2}",
            ["0.5", "1/2", r"50\%", "½", r"\dfrac12", r"\frac{2}{4}", ".5", r"-\frac{1}{-2}", r"\sqrt{0.25}"],
        ),
        (r"\frac{7}{2}", ["3.5", r"3\frac{1}{2}", "3 1/2"]),
        (r"50\%", ["50", "0.5", r"\frac{1}{2}", "50 percent"]),
        ("10,080", ["10080", r"10,\!080", "10{,}080", r"10\,080", "10 080", "10080.0"]),
        (r"\$18.90", ["18.9", r"\$18.90", "18.90 dollars", r"\text{\$}18.90"]),
        (r"15\mbox{ cm}^2", ["15", r"15 \text{ cm}^2", "15 square centimeters", r"15\,\mathrm{cm}^{2}"]),
        (r"90^\circ", ["90", "90°", r"90^{\circ}", r"90\text{ degrees}"]),
        (r"2\sqrt{3}", ["2√3", "2*sqrt(3)", r"\sqrt{12}", r"\sqrt {12}"]),
        (r"0.\overline{3}", [r"\frac{1}{3}", "1/3"]),
        ("x^2+2x+1", ["(x+1)^2", "x² + 2x + 1", "1 + 2x + x^2"]),
        ("y = 2x + 3", ["2x+3", "y=3+2x", "y - 2x = 3", "2x + 3 = y"]),
        ("5", ["x = 5", r"x=\boxed{5}".replace(r"\boxed", ""), "2+3", r"\text{5}", r"\sqrt{25}", "+5"]),
        ("x=5", ["5", "x = 5.0"]),
        (r"x \in [-2,7]", ["[-2,7]", r"-2 \le x \le 7", r"x\in[-2, 7]", r"\left[-2,7\right]"]),
        (r"(2,\infty)", ["x > 2", "(2,∞)", r"x \in (2, \infty)"]),
        (r"(0,9) \cup (9,36)", [r"(9,36)\cup(0,9)", "(0,9)∪(9,36)"]),
        ("1,2", [r"x=1 \text{ or } x=2", "x=1 or x=2", "x = 1, x = 2", r"x_1 = 1, x_2 = 2"]),
        ("1,-2", ["-2, 1", r"\{1,-2\}", r"1 \text{ and } -2", "x=1, x=-2", r"-2 \text{ or } 1"]),
        (r"\{1\pm\sqrt{5},-2\}", [r"\{-2, 1+\sqrt5, 1-\sqrt5\}", r"-2, 1\pm\sqrt{5}"]),
        (r"\pm 2", ["2, -2", r"\{-2,2\}", "±2"]),
        (r"\left( 3, \frac{\pi}{2} \right)", ["(3,π/2)", r"(3, \frac{\pi}{2})", r"3, \frac{\pi}{2}"]),
        (
            r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
            [r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & \frac{8}{2} \end{pmatrix}"],
        ),
        (r"\text{(C)}", ["C", "(C)", r"\text{C}", r"\textbf{(C)}", r"\mathrm{C}"]),
        (r"\text{Evelyn}", ["Evelyn", r"\text{ evelyn }"]),
        ("52_8", ["52_{8}", "(52)_8", r"52_{\text{eight}}", r"52_{\text{base 8}}", r"52\text{ base }8"]),
        ("52", ["52_{10}"]),
        ("6+9i", ["9i+6", "6 + 9 i", "9 i + 6", r"3(2+3i)", r"6 + 9\cdot i", r"6+\sqrt{-81}"]),
        (r"\frac{2+3i}{2}", [r"1+\frac{3}{2}i", r"\frac{3}{2} i + 1", "1+1.5i"]),
        ("6", [r"x_{1} = 6", "a_1=6", r"2 \cdot 3"]),
        ("1 \\pm i", ["1+i, 1-i", "i + 1, 1 - i"]),
        (r"\frac{4+3i}{2}", [r"w = \frac{8+6i}{4} = 2+\frac{3}{2}i", r"\frac{8+6i}{4} = 2+1.5i", r"w=2+1.5i"]),
        ("x+1", ["y = (x+2)-1 = x+1", "f = 1 + x"]),
        ("3i,-3i", [r"\{-3 i, 3 i\}", r"\pm 3i", r"3 i, -3 i"]),
        (r"\frac{\pi}{4}", ["pi/4", "π/4", r"\frac14\pi"]),
        (r"(-\infty,2)", ["(-infty,2)", "x < 2"]),
        (r"\text{June 20}", ["June 20"]),
        ("10^{-3}", ["0.001", "1e-3"]),
        (r"111, \! 111, \! 111", ["111111111", "111,111,111", r"111,\!111,\!111"]),
        (r"\frac{3}{4}\pi", [r"3/4\pi", r"3/4 \pi", r"3\pi/4"]),
        (r"\frac{1}{2x}", ["1/2x", "1/(2x)"]),
        ("1:3", [r"1 \text{ to } 3", "1 to 3", r"\frac{1}{3}"]),
        (r"(-\infty, 2) \cup [3, \infty)", [r"x < 2 \text{ or } x \ge 3", r"x \geq 3 \lor x < 2"]),
        (r"\cos 58^\circ", [r"\cos(58^{\circ})", r"\sin 32^\circ", r"\cos\frac{29\pi}{90}", "cos 58°"]),
        (
            r"\frac{3}{4}",
            [r"\text{The answer is } \frac{3}{4}", "The answer is 3/4", r"\text{Answer: } 0.75", "P(A) = 3/4"],
        ),
        (r"\text{(B)}", [r"\text{(B) }5", r"\textbf{(B)}\ 5", r"\textbf{(B) } \frac{1}{2}"]),
        ("[2,5)", [r"\{x \mid 2 \leq x < 5\}", r"\{ x \in \mathbb{R} : 2 \le x < 5 \}", r"2 \le x < 5"]),
        ("17", [r"17 \pmod{23}", r"n \equiv 17 \pmod{23}", r"17 \text{ mod } 23", r"17 \bmod 23"]),
        ("7", [r"\color{blue}{7}", r"\large 7", r"{\large 7}", r"\textcolor{red}{7}"]),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", [r"\begin{pmatrix} 1 \\[4pt] 2 \end{pmatrix}"]),
        ("(2,5)", [r"x > 2 \text{ and } x < 5", r"x > 2 \land x < 5", "2 < x < 5"]),
        ("(1,2)", [r"\langle 1,2\rangle", r"\left\langle 1, 2\right\rangle"]),
        (r"45^\circ, 135^\circ", [r"135\text{ degrees}, 45\text{ degrees}", "45, 135"]),
        (r"\text{4:30 p.m.}", ["4:30 PM", r"4:30\text{ p.m.}", "4:30"]),
        (r"9\text{ a.m.}", ["9 am", "9:00 AM", "9"]),
        (r"\text{C,E}", ["C, E", "E,C", r"\text{C and E}", r"\text{(C), (E)}"]),
        (r"45\text{ mph}", ["45", r"45 \text{ miles per hour}", r"45 \text{ mi/h}"]),
        (r"25\text{ dollars per hour}", [r"\$25", "25 dollars"]),
        ("5", [r"5^\circ C", "5 units", "05", r"5 \times 10^0"]),
        (r"\emptyset", [r"\varnothing", r"\{\}", "∅"]),
        ("2^{100}", ["1267650600228229401496703205376"]),
        ("5x - 7y + 11z + 4 = 0", ["-5x+7y-11z-4=0", "5x-7y+11z=-4"]),
    ],
)
async def test_an_answer_in_another_notation_is_equal(
    patient_workers: WorkerPool, gold: str, answers: list[str]
) -> None:
    rejected = [answer for answer in answers if not (await compare_answers(patient_workers, gold, answer)).equal]
    assert rejected == []


@pytest.mark.parametrize(
    ("gold", "answers"),
    [
        ("52_8", ["52", "42", "52_9", "52_{10}", "25_8"]),
        ("52", ["52_8"]),
        (r"\frac{2}{3}", ["0.666666", "0.667", "0.6666668"]),
        (r"\frac{1}{3}", ["0.333", "0.33", "0.333334", r"33\%", "3", r"\frac{-1}{3}"]),
        ("0.333", [r"\frac{1}{3}"]),
        (r"\{1,2\}", ["(1,2)", "[1,2]", "1", r"\{1\}", r"\{1,2,3\}", r"\{1,3\}"]),
        ("(1,2)", ["(2,1)", "2,1", "[1,2]", "(1,2]", r"\{1,2\}", "(1,2,3)", "1"]),
        ("(3,4]", ["[4,3)", "(3,4)", "[3,4]", "[3,4)"]),
        ("50", ["0.5", r"0.5\%"]),
        ("0.5", ["50", r"0.5\%", r"5\%"]),
        (r"15\mbox{ cm}^2", [r"15 \text{ cm}", r"15 \text{ m}^2", "15 cm^3"]),
        (r"\$36", ["36 cents", r"36^\circ", "-36"]),
        (r"\frac{3}{4}\pi\text{ inches}", [r"\frac{3}{4}\pi\text{ feet}"]),
        (r"\sqrt{51}", ["7.14", "7.1414", r"\sqrt{15}", "51"]),
        ("3", ["3, 4", r"3 \text{ or } 4", "3 or 4", "{3, 4}", r"\pm 3", "-3", "30", "3x", "5=3", "4 = 3", "3 3", ""]),
        (
            "5",
            [
                r"5 \lor 6",
                "5;6",
                r"5 \mid 6",
                r"5 \cup 6",
                r"\neq 5",
                "5!",
                "x<5",
                r"5 \pm 1",
                "5:6",
                r"6 \to 5",
                "5+C",
                "x=x",
            ],
        ),
        ("34", ["3 4", "3.4", "3,4", "43"]),
        ("3,5,7", ["3,5", "3,5,7,9", "3,5,8", "357"]),
        (r"1 \pm \sqrt{2}", [r"1+\sqrt{2}", r"\pm\sqrt{2}"]),
        (r"(-\infty,2)\cup(3,\infty)", [r"(-\infty,2]\cup(3,\infty)", r"(-\infty,2)", r"(-\infty,\infty)"]),
        (
            r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
            [r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"],
        ),
        ("p - q", ["q - p", "p + q", "-p-q"]),
        ("y = 2x + 3", ["y = 2x - 3", "x = 2y + 3", "2x"]),
        (r"\text{even}", ["odd", r"\text{not even}", "neve"]),
        (r"\text{east}", ["seat", r"\text{west}"]),
        (r"\text{(C)}", ["D", "(A)", r"\text{AC}"]),
        ("0.0000001", ["0.0000002", "0"]),
        (r"\frac{1}{2004!}", [r"\frac{2}{2004!}", r"\frac{1}{2005!}", r"-\frac{1}{2004!}", "0"]),
        (r"\frac{\pi}{10^{20}}", [r"\frac{2\pi}{10^{20}}"]),
        (r"111, \! 111, \! 111", [r"111, \! 111", "111,111", "111"]),
        ("(1,2,3)", ["[1,2,3)", "(1,2,3]", "(1,3,2)"]),
        (r"144 \mbox{ m}^3", [r"144 \mbox{ m}^4", r"144 \mbox{ m}^2", r"144 \text{ cubic feet}"]),
        (r"25\text{ m/s}", [r"25 \text{ km/h}", r"25 \text{ m/s}^2", r"25\text{ miles per second}"]),
        (r"\text{4:30 p.m.}", ["4:30 a.m.", "4:31 p.m.", r"4 \text{ p.m.}", "5:30"]),
        (r"9\text{ a.m.}", ["9 p.m.", "9:30 a.m."]),
        (r"\text{C,E}", ["C", "C,D", "C,D,E"]),
        ("2+3i", ["w = 2+3i = 3+2i", "w = 2+3i = 2-3i"]),
        ("x<2", ["x < i", r"x < 2 \text{ or } y > 3"]),
        ("3+5i", ["5i-3", "3-5i", "3+5j", "5+3i", "3+5", "8i"]),
        (r"\cos 58^\circ", [r"\cos 58", r"\sin 58^\circ", r"\cos 59^\circ"]),
        (
            r"\text{(B)}",
            [r"\text{(B) or (C)}", r"\textbf{(C)}\ 5", r"\text{(A) and (B)}", r"\text{not (B)}", "(B) or C"],
        ),
        (
            "7",
            ["The answer is not 7", "The answer is 8", r"\text{The answer is } 7 \text{ or } 8", "7 is not the answer"],
        ),
        ("[2,5)", [r"\{x \mid 2 \leq x \le 5\}", r"\{2, 5\}"]),
        ("17", [r"18 \pmod{23}", r"-17 \pmod{23}", r"17 \equiv 18 \pmod{23}"]),
        ("6", ["x=5=6", "x = 6 = 7", r"6 = 6\%"]),
        ("1:3", ["3:1", r"3 \text{ to } 1"]),
        (r"(-\infty, 2) \cup (3, \infty)", [r"x < 2 \text{ or } x \ge 3", "x < 2"]),
        (r"3\frac{1}{2}", [r"3 \cdot \frac{1}{2}", "31/2", r"\frac{3}{2}"]),
        ("2^{100}", ["1267650600228229401496703205377"]),
        ("25", ["52", "5²0", "(25", "25)", "[25"]),
        ("x=5", ["y=5", "x=-5"]),
    ],
)
async def test_a_wrong_answer_is_rejected(patient_workers: WorkerPool, gold: str, answers: list[str]) -> None:
    accepted = [answer for answer in answers if (await compare_answers(patient_workers, gold, answer)).equal]
    assert accepted == []


HUGE = [
    (
        r"\frac{2^{2005}+1}{3\cdot2^{2006}}",
        [r"\frac{1}{6}+\frac{1}{3\cdot 2^{2006}}", r"\frac{1+2^{2005}}{3\cdot 2^{2006}}"],
        [r"\frac{1}{3\cdot 2^{2006}}", r"\frac{2^{2005}-1}{3\cdot2^{2006}}", r"\frac{1}{6}"],
    ),
    (
        r"\frac{52!}{(13!)^4}",
        [r"\binom{52}{13}\binom{39}{13}\binom{26}{13}", "53644737765488792839237440000"],
        [r"\frac{52!}{(13!)^4\cdot 4!}", r"\frac{52!}{(13!)^3}", "53644737765488792839237440001"],
    ),
    (r"\frac{40!}{20!20!}", [r"\binom{40}{20}"], [r"\frac{40!}{21!19!}", r"\binom{40}{19}"]),
    (
        r"\frac{2^{50}}{3^{50}}",
        [r"\left(\frac23\right)^{50}"],
        [r"\frac{2^{49}}{3^{50}}", r"\left(\frac{1}{3}\right)^{50}", "0"],
    ),
    (
        r"2-\frac1{2^{99}}",
        ["2-2^{-99}", r"\frac{2^{100}-1}{2^{99}}"],
        [r"2-\frac1{2^{100}}", r"2+\frac{1}{2^{99}}", "2"],
    ),
    (r"\pi+10^{-20}", [r"\frac{1}{10^{20}}+\pi"], [r"\pi", r"\pi-10^{-20}"]),
    (r"\sqrt{2}\cdot 3^{40}", [r"3^{39}\cdot 3\sqrt2"], [r"3^{40}\sqrt2+1", r"3^{41}\sqrt{2}"]),
    (r"\frac{x}{3^{50}}", [r"3^{-50}x"], [r"\frac{2x}{3^{50}}", r"\frac{x}{3^{51}}"]),
    (r"(1,2^{-60})", [r"(1,\frac{1}{2^{60}})"], [r"(1,2^{-61})", "(1,0)"]),
    (r"\{0,3^{-40}\}", [r"\{3^{-40},0\}"], [r"\{0,3^{-41}\}"]),
]


@pytest.mark.parametrize(("gold", "right", "wrong"), HUGE)
async def test_exact_numbers_that_differ_by_less_than_any_float_shows_are_different(
    patient_workers: WorkerPool, gold: str, right: list[str], wrong: list[str]
) -> None:
    equal = [answer for answer in (*right, *wrong) if (await compare_answers(patient_workers, gold, answer)).equal]
    assert equal == right


async def test_a_number_beside_a_binomial_or_a_bracket_is_a_factor(patient_workers: WorkerPool) -> None:
    for gold, answer, equal in (
        (r"10!", r"\binom{10}{5}5!5!", True),
        (r"\frac{9!}{2}", r"\binom{9}{2}7!", True),
        (r"\frac{5!}{2!3!}+3", r"\binom{5}{2}3", False),
        ("(x+2)(x+3)+5", "(2)(3)", False),
        ("5", "(2)(3)", False),
    ):
        assert (await compare_answers(patient_workers, gold, answer)).equal == equal, (gold, answer)


@pytest.mark.parametrize(
    ("problem", "gold", "right", "wrong"),
    [
        ("Simplify $3t+4-6t+7t-4$.", "4t", [r"4\cdot t", "4 t"], ["4", r"4\text{ tons}", "4s", "-4t"]),
        ("How much in terms of $c$?", "9c+6", ["6+9c", "3(3c+2)"], ["15", "9c", "6+9d"]),
        ("How many liters?", "90", [r"90\text{ L}", r"90\text{ l}", "90l"], [r"90\text{ mL}", "9l"]),
        ("How long is it in meters?", "12", ["12m", r"12\,\mathrm{m}"], [r"12\text{ km}", r"12\text{ s}", "12x"]),
        ("Simplify $2m+10m$.", "12m", [r"12\cdot m"], ["12", r"12\text{ meters}"]),
        (
            "How many minutes?",
            "200",
            [r"200 \text{ min}", "200 min", r"200\,\mathrm{min}"],
            [r"200\text{ h}", r"\min 200"],
        ),
        ("How many seconds?", "35", [r"35 \text{ sec}", r"35\text{ secs.}"], [r"35\text{ min}", r"\sec 35"]),
        (
            "How many years old is he?",
            "13",
            [r"13 \text{ years old}", r"13\text{ yrs}", r"13\text{ y.o.}"],
            [r"13\text{ months}"],
        ),
        (
            "How many points, calories and weeks?",
            "8",
            [rf"8\text{{ {unit}}}" for unit in ("pts", "cal", "kcal", "wk")],
            [],
        ),
        ("How many days?", "8", [r"8\text{ d}", "8 days"], [r"8\text{ wk}"]),
        ("What percent is it?", "75", [r"75\text{ pct}", r"75\%"], [r"0.75\text{ pct}"]),
        ("He asks for in total 3 feet.", "12", [r"12\text{ ft}"], [r"12\text{ in}"]),
        (
            "Which grade?",
            "12",
            [
                r"12^{\text{th}}",
                r"12\text{th}",
                r"\text{12th}",
                r"12^{\text{th}} \text{ grade}",
                "the 12th one",
                "12^{th}",
            ],
            [r"\frac{1}{12}\text{th}", r"\text{a 12th}", r"11^{\text{th}}", r"12\text{nd}"],
        ),
        ("Solve.", "x=3, y=2", ["y=2, x=3", "(x,y)=(3,2)"], ["(2,3)", "2, 3", r"\{2,3\}", r"x=3 \text{ or } y=2"]),
        ("Where?", r"12\text{ and }13", ["12, 13", r"13\text{ and }12"], [r"12\text{ or }13", "12"]),
        ("Solve.", r"\emptyset", [r"\varnothing", r"\{\}"], [r"\{\emptyset\}", "0"]),
        ("Factor $36-4x^2$.", "4(3-x)(3+x)", ["-4(x-3)(x+3)"], ["(6-2x)(6+2x)", "2(6-2x)(3+x)"]),
        ("Factor $9z^3-27z^2$.", "9z^2(z-3)", ["9(z-3)z^2"], ["z(9z^2-27z)", "9z(z^2-3z)", "9(z^3-3z^2)"]),
        ("Find it.", r"1-\frac1{\mathrm e}", ["1-e^{-1}", r"\frac{e-1}{e}"], ["1-e"]),
        ("Simplify.", r"\frac1{\sqrt n}", [r"\sqrt{1/n}", r"\frac{\sqrt n}{n}"], [r"\sqrt n", r"-\frac{1}{\sqrt n}"]),
        ("Expand.", r"\ln(ab)", [r"\ln a+\ln b"], [r"\ln a\ln b", r"\ln(a+b)"]),
        ("For real $x$, simplify.", "|x|", [r"|x|"], ["x", "-x"]),
        ("Solve.", r"1\pm\sqrt5", [r"\frac{2\pm\sqrt{20}}{2}"], [r"\frac{2\pm\sqrt{20}}{4}", r"1+\sqrt5"]),
        ("Solve.", r"x=n\pi, n\in\mathbb Z", [r"n\pi", r"x=k\pi,\ k\in\mathbb{Z}"], [r"2n\pi", "0"]),
        ("Integrate.", "x^2+C", ["x^2+c", r"x^2+\text{C}"], ["x^2", "x^2-1"]),
        (
            "Find the vector.",
            r"\begin{pmatrix}1\\2\end{pmatrix}",
            [r"\begin{pmatrix}1&2\end{pmatrix}", r"\langle 1,2\rangle", "(1,2)"],
            [r"\langle 2,1\rangle", r"\{1,2\}", r"\begin{pmatrix}2&1\end{pmatrix}"],
        ),
        ("Which?", "B,E,G", [r"\text{B, E, and G}", r"\text{E, B and G}"], [r"\text{B, E, or G}", r"\text{B, E}"]),
        ("Which?", r"\text{B, E, G}", [r"\text{B, E, and G}"], [r"\text{B, E, or G}", r"\text{B, E}"]),
        ("Which graph?", "A", [r"\text{Graph A}"], [r"\text{Graph B}", r"\text{not A}"]),
        (
            "Is it?",
            r"\text{Yes}",
            [r"\text{Yes, it is irrational}"],
            [r"\text{No}", r"\text{Yes or no}", r"\text{Yes, but no}"],
        ),
        (
            "Is $f$ a function that is odd?",
            r"\text{odd}",
            [r"\text{an odd function}"],
            [r"\text{an even function}", r"\text{not odd}"],
        ),
        ("Find it.", r"\frac{3}{4}", [r"\mathbf{\frac{3}{4}}", r"\bf{\frac{3}{4}}"], [r"\mathbf{\frac{4}{3}}"]),
        ("Find it.", r"135^\circ", [r"\mathbf{135^\circ}"], [r"\mathbf{136^\circ}"]),
        ("List them.", r"1,2,\ldots,n", [r"1,2,\dots,n", "1,2,...,n"], [r"1,2,\dots,n-1", "1,2"]),
        ("Write 255 in hexadecimal.", "FF", [r"\text{FF}_{16}", "FF_{16}"], [r"\text{FF}_{15}", "255"]),
    ],
)
async def test_an_answer_means_what_the_problem_makes_of_it(
    patient_workers: WorkerPool, problem: str, gold: str, right: list[str], wrong: list[str]
) -> None:
    equal = [
        answer for answer in (*right, *wrong) if (await compare_answers(patient_workers, gold, answer, problem)).equal
    ]
    assert equal == right


@pytest.mark.parametrize(
    ("one", "other"),
    [(r"\frac{1}{3}", "0.333333"), ("0.333", r"\frac{1}{3}"), (r"\{1,2\}", "(1,2)"), ("1<x<2", "(1,2)"), ("x=5", "5")],
)
async def test_the_order_of_gold_and_answer_does_not_matter(patient_workers: WorkerPool, one: str, other: str) -> None:
    assert (await compare_answers(patient_workers, one, other)).equal == (
        await compare_answers(patient_workers, other, one)
    ).equal


async def test_a_decimal_of_six_digits_equals_the_number_it_rounds_but_not_exactly(patient_workers: WorkerPool) -> None:
    for gold, answer in (
        (r"\frac{1}{3}", "0.333333"),
        (r"\frac{2}{3}", "0.66666666"),
        (r"\sqrt{51}", "7.141428"),
        ("2.645751", r"\sqrt{7}"),
    ):
        result = await compare_answers(patient_workers, gold, answer)
        assert (result.equal, result.exact) == (True, False), (gold, answer)


def test_a_very_long_or_deeply_nested_answer_is_wrong_without_parsing() -> None:
    for answer in ("1 " * 20_000, "9" * 5_000, "(" * 50 + "1+x" + ")" * 50, r"\sqrt{" * 50 + "2" + "}" * 50):
        result = compare_without_algebra("42", answer)
        assert result is not None
        assert not result.equal


def test_simple_answers_need_no_algebra() -> None:
    for gold, answer in (("18", "18.0"), ("18", "19"), (r"\text{yes}", "no"), ("52_8", "52"), ("x+1", "x + 1")):
        assert compare_without_algebra(gold, answer) is not None
    assert compare_without_algebra("x+1", "1+x") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,018", 1018),
        (r"1{,}018", 1018),
        (r"1\,018", 1018),
        ("1 018", 1018),
        (r"11,\! 111,\! 111,\! 100", 11111111100),
        ("1,00,000", 100000),
        (r"\$18.00", 18),
        ("-$5", -5),
        ("−5", -5),
        (r"3\frac{1}{2}", Fraction(7, 2)),
        ("3 1/2", Fraction(7, 2)),
        ("31/2", Fraction(31, 2)),
        ("½", Fraction(1, 2)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"\dfrac12", Fraction(1, 2)),
        (r"1.8 \times 10^{3}", 1800),
        ("1e5", 100000),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"0.1\overline{6}", Fraction(1, 6)),
        ("１８", 18),
        ("٣", 3),
        ("1.5 million", 1500000),
        ("2 dozen", 24),
        (r"\text{18 dollars}", 18),
        (r"\approx 18", 18),
        ("18.", 18),
        ("$18$", 18),
        (".5", Fraction(1, 2)),
    ],
)
def test_every_notation_of_a_number_has_its_exact_value(text: str, value: int | Fraction) -> None:
    parsed = quantity(text)
    assert parsed is not None
    assert parsed.value == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "$",
        "1,2",
        "1,23",
        "1 8",
        "3 or 4",
        r"3 \text{ or more}",
        "18x",
        "18 x",
        "2^{10}",
        "x",
        r"\frac{1}{0}",
        "5²",
        "1/2/3",
        "1e99999",
        "9" * 3000,
        "10:30",
        "--5",
        "1.2.3",
        "3 5/2",
        "four",
        "⅟",
    ],
)
def test_a_text_that_is_not_one_number_yields_none(text: str) -> None:
    assert quantity(text) is None


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (r"5\text{ cm}", "cm"),
        (r"15\mbox{ cm}^2", "cm^2"),
        ("864 square inches", "in^2"),
        (r"864 \mbox{ inches}^2", "in^2"),
        (r"90^\circ", "degree"),
        ("90 degrees", "degree"),
        (r"\$36", "dollar"),
        ("5.4 cents", "cent"),
        (r"12\text{ students}", None),
        ("12", None),
    ],
)
def test_the_notations_of_a_unit_have_one_canonical_name(text: str, unit: str | None) -> None:
    parsed = quantity(text)
    assert parsed is not None
    assert parsed.unit == unit


def test_words_after_a_number_may_be_ignored() -> None:
    assert quantity("18 eggs") is None
    assert quantity("18 eggs a day", any_words=True) is not None
    assert quantity("18 or more", any_words=True) is None


def test_the_unit_of_a_formula_is_parsed_too() -> None:
    assert unit_of(r"\frac{3}{4}\pi\text{ inches}") == "in"
    assert unit_of(r"\frac{3}{4}\pi") is None
