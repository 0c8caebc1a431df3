"""Training with TRL (1.16). These modules import torch, transformers and trl: the extra `train`.

policy_trainer.py      what the training loop needs of the trainer: updates, weights, checkpoints
rollout_trainer.py     TRL's GRPOTrainer, fed with rollouts of a running stack
micro_batch_inputs.py  sequences as the tensors that TRL's loss reads
grpo_settings.py       a TrainConfig as TRL's GRPOConfig
sequence_log_probs.py  log-probabilities of whole sequences, for the comparison with the engines
save_policy.py         the trained weights as a Hugging Face folder
update_metrics.py      figures of an update's log-probabilities

For programs with a trainer of their own (docs/trainers.md):
stack_session.py       a running stack, for programs that are not asynchronous
rollout_func.py        the rollout function and the reward of a plain GRPOTrainer
publish_weights.py     a callback that gives the engines the weights after every step
rollout_worker.py      the rollout worker of an AsyncGRPOTrainer
weight_transfer.py     its weight transfer
episodes.py            plays single rollouts
trl_columns.py         rollouts as the rows of a plain GRPOTrainer
loop_thread.py         an event loop in a thread of its own
weight_senders.py      the trainer's side of vLLM's weight transfer by NCCL or CUDA IPC
"""
