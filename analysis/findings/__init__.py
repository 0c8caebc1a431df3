"""Findings: what stands out in a run, as sentences with figures, ranked by how much reward they concern.

Only rollouts that were rewarded can be reported as exploits: a policy that is merely bad is never accused.
"""
