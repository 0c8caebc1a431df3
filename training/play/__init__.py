"""Plays the episodes of each update on a running stack, with the collector of `ng_collect_rollouts`.

batch_source.py    StackBatchSource: the batches of a training run, in turn with the trainer or ahead of it
step_player.py     plays one step and turns its files into a batch
task_order.py      which tasks each step plays: seed, epochs, position
step_tasks.py      the tasks of one step, as a collection
step_files.py      the files of a step, and which of them a resumed run uses again
step_members.py    the rows and failures of a step as group members
policy_age.py      how old the weights are that sampled a rollout
"""
