"""Rollout files to experiment trackers: `figures` over time, a `sample` to read, one file a tracker."""
