"""Lists all detectors. The page and the report show the findings of these, in the order of `Finding.stake`."""

from __future__ import annotations

from rollyard.analysis.findings.answers.invalid_calls import InvalidCalls
from rollyard.analysis.findings.answers.no_answer import NoAnswer
from rollyard.analysis.findings.answers.same_answer import SameAnswer
from rollyard.analysis.findings.behaviour.cut_by_limit import CutByLimit
from rollyard.analysis.findings.behaviour.empty_response import EmptyResponse
from rollyard.analysis.findings.behaviour.no_tool_used import NoToolUsed
from rollyard.analysis.findings.behaviour.repeated_calls import RepeatedCalls
from rollyard.analysis.findings.behaviour.repeated_text import RepeatedText
from rollyard.analysis.findings.behaviour.stopped_early import StoppedEarly
from rollyard.analysis.findings.behaviour.unusual_length import UnusuallyLong, UnusuallyShort
from rollyard.analysis.findings.detector import Detector, RowDetector
from rollyard.analysis.findings.exploits.addressed_grader import AddressedGrader
from rollyard.analysis.findings.exploits.answer_far_from_gold import AnswerFarFromGold
from rollyard.analysis.findings.exploits.copied_prompt import CopiedPrompt
from rollyard.analysis.findings.exploits.disguised_characters import DisguisedCharacters
from rollyard.analysis.findings.exploits.empty_answer import EmptyAnswerRewarded
from rollyard.analysis.findings.exploits.forced_exit import ForcedExit
from rollyard.analysis.findings.exploits.hard_coded_tests import HardCodedTests
from rollyard.analysis.findings.exploits.hidden_answer import HiddenAnswer
from rollyard.analysis.findings.exploits.long_answers import LongAnswersRewarded
from rollyard.analysis.findings.exploits.same_text import SameTextRewarded
from rollyard.analysis.findings.exploits.several_answers import SeveralAnswers
from rollyard.analysis.findings.exploits.solution_read import SolutionRead
from rollyard.analysis.findings.exploits.special_tokens import SpecialTokens
from rollyard.analysis.findings.exploits.test_tampering import TestTampering
from rollyard.analysis.findings.failures.attempts import ErrorBurst, Timeouts
from rollyard.analysis.findings.failures.verdict_timeouts import VerdictTimeouts
from rollyard.analysis.findings.rewards.no_variance import NoVariance
from rollyard.analysis.findings.rewards.partial_rewards import RepeatedPartialRewards
from rollyard.analysis.findings.rewards.reward_success import HighRewardUnsolved, LowRewardSolved

ROW_DETECTORS: tuple[RowDetector, ...] = (
    SeveralAnswers(),
    EmptyAnswerRewarded(),
    AnswerFarFromGold(),
    CopiedPrompt(),
    SpecialTokens(),
    AddressedGrader(),
    TestTampering(),
    SolutionRead(),
    ForcedExit(),
    HardCodedTests(),
    DisguisedCharacters(),
    HiddenAnswer(),
    NoToolUsed(),
    EmptyResponse(),
    RepeatedCalls(),
    RepeatedText(),
    CutByLimit(),
    NoAnswer(),
    InvalidCalls(),
    VerdictTimeouts(),
)
"""Detectors that look at each row, at most 63, because each has one bit of an integer."""
DETECTORS: tuple[Detector, ...] = (
    *ROW_DETECTORS,
    SameTextRewarded(),
    LongAnswersRewarded(),
    HighRewardUnsolved(),
    LowRewardSolved(),
    RepeatedPartialRewards(),
    StoppedEarly(),
    UnusuallyLong(),
    UnusuallyShort(),
    SameAnswer(),
    NoVariance(),
    Timeouts(),
    ErrorBurst(),
)
