"""Command-line overrides: Hydra's override parser, with readable messages for arguments that it cannot parse.

override.py       parses arguments and applies them to a config
hydra_grammar.py  finds quotes and brackets, and formats values
syntax_hints.py   explains what is wrong with an argument and how to write it
"""

from rollyard.services.config.overrides.override import Override, apply, parse_overrides, shown

__all__ = ["Override", "apply", "parse_overrides", "shown"]
