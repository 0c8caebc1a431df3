"""Training with TRL (1.16). These modules import torch, transformers and trl: the extra `train`.

policy_trainer.py      what the training loop needs of the trainer: updates, weights, checkpoints
rollout_trainer.py     TRL's GRPOTrainer, fed with rollouts of a running stack; figures of an update's log-probabilities
save_policy.py         the trained weights as a Hugging Face folder
weight_senders.py      the trainer's side of vLLM's weight transfer by NCCL or CUDA IPC

For programs with a trainer of their own (docs/trainers.md):
stack_session.py       a running stack, for programs that are not asynchronous
rollout_func.py        the rollout function and the reward of a plain GRPOTrainer
stack_environments.py  the environment factory of a plain GRPOTrainer
publish_weights.py     a callback that gives the engines the weights after every step
rollout_worker.py      the rollout worker and the weight transfer of an AsyncGRPOTrainer
episodes.py            plays single rollouts
"""
