"""Reads the metrics of training runs."""
