"""Plays every environment of NeMo Gym under NeMo Gym's agent and under Rollyard's, and compares the rewards.

    python -m tests.external.nemo_gym.compatibility              # all; writes docs/evidence/compatibility.md
    python -m tests.external.nemo_gym.compatibility mcqa ruler   # prints the rows of these environments

catalog.py         the environments in the installed wheel, and the rows that each plays
scripted_model.py  the model, and the judge of environments that ask one
scripts/           what the model answers in each environment
forked_servers.py  NeMo Gym's servers without Rollyard: the reference
ours.py            the same environments, started by `ng_run` and played by `ng_collect_rollouts`
reasons.py         why an environment does not start, from what its program printed
comparison.py      both sides of one environment, as one result
table.py           the results as docs/evidence/compatibility.md
"""
