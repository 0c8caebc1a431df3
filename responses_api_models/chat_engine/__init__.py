"""The model server in front of a chat engine, shared by vllm_model and local_vllm_model.

model.py, settings.py    the server: both OpenAI APIs through Chat Completions
token_history.py         model calls with recorded tokens, and prompts that continue them
token_backends.py        the two APIs through which an engine accepts token ids; hermes.py parses tool calls from text
sampling.py              records the sampling parameters and constraints of a turn
special_tokens.py        handles special tokens that are spelled out in text
capabilities.py          detects what the engine supports
token_diagnostics.py     the checks of `ng_doctor tokens`
weights/                 policy versions and weight updates
"""
