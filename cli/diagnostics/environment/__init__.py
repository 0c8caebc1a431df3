"""Checks of one environment, over its HTTP API: `ng_doctor env`."""
