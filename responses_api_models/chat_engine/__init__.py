"""The model server in front of a chat engine, shared by vllm_model and local_vllm_model.

model.py, settings.py    the server: both OpenAI APIs through Chat Completions, and the checks of `ng_doctor tokens`
token_history.py         model calls with recorded tokens, and prompts that continue them
token_backends.py        the two APIs through which an engine accepts token ids; detects what it supports
sampling.py              records the sampling parameters and constraints of a turn
special_tokens.py        handles special tokens that are spelled out in text
policy_versions.py       the version of the policy and of each engine, and the gate in front of model calls
checkpoint.py            checks a folder of weights before any engine loads it
weight_update.py         the engines; loads weights into all of them or restores old ones; syncs restarted engines
vllm_control.py          the trainer's endpoints: vLLM's control calls, weight updates, log-probabilities of tokens
"""
