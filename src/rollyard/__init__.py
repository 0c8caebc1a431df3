"""Rollyard: rollouts of language models in environments, for evaluation and training."""
