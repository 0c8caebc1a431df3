"""What a trainer needs of the policy: its versions, tokens in and out, new weights.

versions.py     which version the policy has, which each engine holds, which a turn was sampled from
gate.py         model calls wait while weights change and are refused while engines differ; answers carry the version
engines.py      one request to every engine
checkpoint.py   a folder of weights, seen to be whole and this model's before any engine is touched; with tensors.py,
                profile.py, config_changes.py, finite.py and fingerprint.py
loader.py       what is done to one engine when its weights change
jobs.py         one after another, and each to its end
weights.py      new weights from a folder on every engine, or the old ones on every engine
newcomers.py    engines that were started anew, and hold other weights for that reason
cpu.py          what an engine on a CPU cannot do with new weights
lease.py        how long a pause lasts without a sign of life
protocol.py     vLLM's own control endpoints, for trainers that send weights their own way; the list is control_calls.py
trainer.py      all of it as endpoints
"""
