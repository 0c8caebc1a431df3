"""The interface for trainers: policy versions, token-in endpoints, and weight updates.

training_routes.py   the HTTP endpoints
policy_versions.py   the policy's version, the version on each engine, and the version that sampled a turn
call_gate.py         delays model calls while weights change, rejects them while engines differ, reports the version
checkpoint.py        checks a folder of weights before any engine loads it
weight_update.py     loads new weights into every engine, or restores the old ones; syncs engines that were restarted
weight_loader.py     the steps of a weight change on one engine, and what an engine on a CPU cannot do
engine_group.py      sends one request to every engine, and runs one job at a time
engine_log_probs.py  log-probabilities of given tokens, from every engine
vllm_control.py      vLLM's control endpoints, for trainers that transfer weights themselves
"""
