"""A training run, from its config to its folder. None of these modules imports torch.

train.py             train: a running stack and a config in, a finished run folder out
run_training.py      resumes from the newest checkpoint, and records how training ended
training_loop.py     the order of updates, publishing, metrics, evaluations and checkpoints, in every process
step_runner.py       what the main process does between two updates
policy_trainer.py    what the loop needs of the trainer
stack_parts.py       what the loop needs of the stack
stack_calls.py       calls from the trainer's thread into the event loop; stop_signals.py: SIGINT and SIGTERM
step_play.py         plays a step while engines that restart get the weights again; publishers.py: how they get them
schedule.py          after which updates there is a checkpoint or an evaluation
evaluator.py         plays the evaluation dataset and computes eval/...
checkpoints.py       folders from which training resumes, complete or absent
run_folder.py        lock, config, record and git state; settings_check.py: refuses other settings
traces.py            how long each stage took, and what became of each task
"""
