"""Plays every environment of NeMo Gym under NeMo Gym's agent and under Rollyard's, and compares the rewards.

    python -m tests.external.nemo_gym.compatibility              # all that have no result; writes the page
    python -m tests.external.nemo_gym.compatibility mcqa ruler   # plays these again

catalog.py         the environments in the installed wheel, and the rows that each plays
requirements.txt   the packages that they need
scripted_model.py  the model, and the judge of environments that ask one
scripts/           what the model answers in each environment
warm_python.py     NeMo Gym's interpreter, in a box
reference.py       NeMo Gym's servers without Rollyard
ours.py            the same environments, started by `ng_run` and played by `ng_collect_rollouts`
reasons.py         why an environment does not start, from what its program printed
comparison.py      both sides of one environment, as one result
table.py           the results as docs/evidence/compatibility.md
"""
