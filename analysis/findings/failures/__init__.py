"""Detectors of failing environments, judges and hosts."""
