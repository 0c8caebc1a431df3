"""The programs that an evaluation runs: vLLM, Ray, `ng_run`, `ng_collect_rollouts` and `ng_reward_profile`."""
