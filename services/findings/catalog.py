"""Lists all detectors. The page and the report show the findings of these, in the order of `Finding.stake`."""

from __future__ import annotations

from rollyard.services.findings.answers.invalid_calls import InvalidCalls
from rollyard.services.findings.answers.no_answer import NoAnswer
from rollyard.services.findings.answers.same_answer import SameAnswer
from rollyard.services.findings.behaviour.cut_by_limit import CutByLimit
from rollyard.services.findings.behaviour.empty_response import EmptyResponse
from rollyard.services.findings.behaviour.no_tool_used import NoToolUsed
from rollyard.services.findings.behaviour.repeated_calls import RepeatedCalls
from rollyard.services.findings.behaviour.repeated_text import RepeatedText
from rollyard.services.findings.behaviour.stopped_early import StoppedEarly
from rollyard.services.findings.behaviour.unusual_length import UnusuallyLong, UnusuallyShort
from rollyard.services.findings.detector import Detector, RowDetector
from rollyard.services.findings.exploits.addressed_grader import AddressedGrader
from rollyard.services.findings.exploits.answer_far_from_gold import AnswerFarFromGold
from rollyard.services.findings.exploits.copied_prompt import CopiedPrompt
from rollyard.services.findings.exploits.disguised_characters import DisguisedCharacters
from rollyard.services.findings.exploits.empty_answer import EmptyAnswerRewarded
from rollyard.services.findings.exploits.forced_exit import ForcedExit
from rollyard.services.findings.exploits.hard_coded_tests import HardCodedTests
from rollyard.services.findings.exploits.hidden_answer import HiddenAnswer
from rollyard.services.findings.exploits.long_answers import LongAnswersRewarded
from rollyard.services.findings.exploits.same_text import SameTextRewarded
from rollyard.services.findings.exploits.several_answers import SeveralAnswers
from rollyard.services.findings.exploits.solution_read import SolutionRead
from rollyard.services.findings.exploits.special_tokens import SpecialTokens
from rollyard.services.findings.exploits.test_tampering import TestTampering
from rollyard.services.findings.failures.attempts import ErrorBurst, Timeouts
from rollyard.services.findings.failures.verdict_timeouts import VerdictTimeouts
from rollyard.services.findings.rewards.no_variance import NoVariance
from rollyard.services.findings.rewards.partial_rewards import RepeatedPartialRewards
from rollyard.services.findings.rewards.reward_success import HighRewardUnsolved, LowRewardSolved

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
