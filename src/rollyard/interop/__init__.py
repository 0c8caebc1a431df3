"""Rollyard under the names and in the formats of other projects' programs. Nothing here imports them until it is used.

nemo_gym/                                             the names that NeMo RL and verl import from nemo_gym
skyrl.py, slime.py, areal.py, openrlhf.py, verl.py    rollouts for trainers, played on a running stack
verl_advantages.py                                    verl's GRPO without rollouts that do not count
episode_player.py, episodes_of_trainers.py            what the adapters share: playing, rows of tokens and their rewards
rows.py                                               `python -m rollyard.interop.rows`: datasets for these trainers
"""
