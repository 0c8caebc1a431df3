"""Findings: what stands out in a run, as sentences with figures, ranked by how much reward they concern.

A detector (`detector.py`) selects rollouts; its docstring is its definition and is shown to users. `behaviour.py` and
`exploits.py` contain them. `find.py` lists them, reads the file once for a few numbers of each rollout, and turns what
they select into `Finding` records.

Findings are observations, not verdicts. Only rollouts that were rewarded can be reported as exploits, so a policy that
is merely bad is never accused of cheating.
"""
