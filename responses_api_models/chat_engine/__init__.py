"""The model server in front of a chat engine, shared by vllm_model and local_vllm_model.

model.py, settings.py    the server: both OpenAI APIs through Chat Completions
token_history/           model calls with recorded tokens, and prompts that continue them
token_backends/          the two APIs through which an engine accepts token ids
hermes.py                parses tool calls from text
sampling.py              records the sampling parameters and constraints of a turn
special_tokens.py        handles special tokens that are spelled out in the text found by prompt_texts.py
capabilities.py          detects what the engine supports
token_diagnostics.py     the checks of `ng_doctor tokens`
unreadable_tool_calls.py marks tool calls that the engine could not parse
weights/                 policy versions and weight updates
"""
