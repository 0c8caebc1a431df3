"""Decides whether a candidate may replace a baseline: GO, NO-GO or INCONCLUSIVE.

`rules` are the requirements, `comparability` refuses runs that must not be compared, `coverage` counts missing rollouts
against the candidate, and `decision` applies the rules.
"""
