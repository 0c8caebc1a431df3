"""Collection of one output by several jobs: leases on blocks of rollouts, one shard per job, and their merge."""
