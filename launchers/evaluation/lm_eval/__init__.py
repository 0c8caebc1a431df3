"""EleutherAI's lm_eval on a policy or on checkpoints: its process, its results, and which evaluations are done."""
