"""Brings new weights from the trainer to the engines of the policy.

methods.py             files, NCCL or CUDA IPC, and what engines need for it
policy_client.py       the weight endpoints of a model server
version_folders.py     one folder per version: complete or absent, never overwritten
weight_publisher.py    saves a version, and has every engine load it
weight_sender.py       the trainer's side of a transfer between GPUs
transfer_publisher.py  sends a version to every engine without files
parity.py              compares the engines' log-probabilities with the trainer's
"""
