"""The model server in front of a chat engine, shared by vllm_model and local_vllm_model.

model.py, settings.py    the server: both OpenAI APIs through Chat Completions
token_history.py         model calls with recorded tokens, and prompts that continue them
token_backends.py        the two APIs through which an engine accepts token ids; detects what it supports
sampling.py              records the sampling parameters and constraints of a turn
special_tokens.py        handles special tokens that are spelled out in text
token_diagnostics.py     the checks of `ng_doctor tokens`

For trainers:

training_routes.py       the HTTP endpoints, and log-probabilities of given tokens from every engine
policy_versions.py       the version of the policy and of each engine, and the gate in front of model calls
checkpoint.py            checks a folder of weights before any engine loads it
weight_update.py         loads new weights into every engine, or restores the old ones; syncs restarted engines
engine_group.py          sends one request to every engine, and runs one job at a time
vllm_control.py          vLLM's control endpoints, for trainers that transfer weights themselves
"""
