"""Trains the policy on rollouts of a running stack. Only `trl/` imports torch.

train.py                the loop of `ng_train`: updates, publishing, metrics, evaluations, checkpoints
step_runner.py          what the main process does between two updates
policy_trainer.py       what the loop needs of the trainer, which is in `trl/`
train_config.py         the keys of a training YAML, and the losses by name
start_checks.py         everything that can be checked before anything is started
run_folder.py           lock, settings, record and git state of a run; run_paths.py: its files
checkpoints.py, evaluator.py               what a run writes besides its metrics
training_stack.py       the servers that a run plays on, and their configs
batch_source.py         plays the episodes of each step with the collector
task_order.py, step_files.py               which tasks a step plays, and its files
training_sequence.py, groups.py, update.py from a rollout's tokens to what has a loss
weight_publisher.py, transfer_publisher.py new weights on their way to the engines
step_metrics.py         figures of each step; metrics_log.py: metrics.jsonl, loggers
ray_trainer.py          the trainer as an actor of a Ray cluster
rlvr.py                 training configs of rlvr-experiments
trl/                    TRL's trainers, fed with rollouts
"""
