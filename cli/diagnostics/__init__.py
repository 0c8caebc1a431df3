"""Checks that ng_doctor runs."""
