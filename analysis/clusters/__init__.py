"""Clusters of failed rollouts: groups that do the same thing wrong, found and named without a model.

`failed_rollouts.py` selects rollouts, `documents.py` turns each into terms (what it did, called and answered, and why
the verdict was what it was), `vectors.py` weights them, `grouping.py` finds the groups, `naming.py` their
distinguishing terms, and `find_clusters.py` assigns every failed rollout and computes the figures. `compare.py` does it
for the union of two runs. Only `grouping.py` and `vectors.py` need scikit-learn (the extra `clusters`), which they
import when they run.
"""
