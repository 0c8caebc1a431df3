"""Findings: what stands out in a run, as sentences with figures, ranked by how much reward they concern.

A detector (`detector.py`) selects rollouts; its docstring is its definition and is shown to users. `behaviour/`,
`answers/`, `exploits/`, `rewards/` and `failures/` contain one detector per file, and `catalog.py` lists them.
`sign_reader.py` reads the file once and keeps a few numbers of each rollout, `evidence.py` joins them with the metrics,
and `find.py` turns them into `Finding` records.

Findings are observations, not verdicts. Only rollouts that were rewarded can be reported as exploits, so a policy that
is merely bad is never accused of cheating.
"""
