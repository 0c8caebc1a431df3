"""Sends rollout data to experiment trackers: metrics over time and a sample of rollouts. Each tracker has its own
module.
"""
