"""YAML files and command-line overrides become typed settings; plug-in folders become classes."""
