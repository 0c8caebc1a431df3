"""Detectors of behaviour that costs reward."""
