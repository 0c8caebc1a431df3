"""Parses YAML files and command-line overrides into typed settings, and loads server classes from plug-in folders."""
