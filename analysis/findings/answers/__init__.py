"""Detectors of answers that an environment cannot use, or that do not depend on the task."""
