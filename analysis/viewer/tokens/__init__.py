"""The page of a run's tokens: where the policy is unsure."""
