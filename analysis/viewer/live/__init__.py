"""Follows single episodes while they are played."""
