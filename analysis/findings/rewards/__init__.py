"""Detectors of rewards that contradict success, or that teach nothing."""
