"""Turns YAML files and command-line overrides into typed settings, and plug-in folders into classes."""
