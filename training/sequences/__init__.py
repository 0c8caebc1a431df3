"""A rollout's recorded tokens as sequences that a trainer can put through its model."""
