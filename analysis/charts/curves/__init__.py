"""Draws the metrics of training runs against their steps."""
