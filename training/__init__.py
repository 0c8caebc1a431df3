"""Trains the policy on rollouts of a running stack. Only `trl/` imports torch.

sequences/         token sequences of a rollout, and the formats of other trainers
endings.py         what each way to end an episode means for training
groups/            the rollouts of one task, their advantages, and why a group is skipped
micro_batches.py   sequences that go through the model together
algorithms.py      losses by name, as TRL's settings
train_config.py    the keys of a training YAML
batch.py           what one training step gets from the stack
update.py          the sequences of a step that have a loss
versions.py        names of the versions of the weights
weights/           new weights on their way to the engines
play/              plays the episodes of each step with the collector
stack/             the servers that a training run plays on
run/               `ng_train`: the loop over updates, checkpoints, the run folder
run_paths.py       the files of a training run
metrics/           figures of each step, metrics.jsonl, loggers, curves
rlvr/              training configs of rlvr-experiments
trl/               TRL's trainers, fed with rollouts; imports torch
"""
