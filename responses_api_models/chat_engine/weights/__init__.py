"""The interface for trainers: policy versions, token-in endpoints, and weight updates.

policy_versions.py    the policy's version, the version on each engine, and the version that sampled a turn
call_gate.py          delays model calls while weights change, rejects them while engines differ, reports the version
engine_group.py       sends one request to every engine
checkpoint.py         checks a folder of weights before any engine loads it; uses safetensors_headers.py,
                      model_signature.py, config_changes.py, finite_weights.py and checkpoint_fingerprint.py
adapters.py           LoRA adapters as versions of the policy
adapter_loader.py     the steps that load an adapter into one engine
weight_loader.py      the steps of a weight change on one engine
job_queue.py          runs jobs on the engines sequentially, without cancellation
weight_update.py      loads new weights from a folder into every engine, or restores the old ones
joining_engines.py    syncs the weights of engines that were restarted
engine_log_probs.py   log-probabilities of given tokens, from every engine
cpu_limits.py         limits of weight updates on CPU engines
pause_lease.py        ends a pause if the trainer stops sending control calls
transfer_ranks.py     ranks of several engines in one NCCL group
vllm_control.py       vLLM's control endpoints, for trainers that transfer weights themselves (control_endpoints.py)
training_routes.py    the HTTP endpoints
"""
