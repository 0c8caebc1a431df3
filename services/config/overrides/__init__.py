"""The command line's grammar: Hydra's own override parser, and plain words for what it cannot read.

override.py  an argument as key and value, written into a config    written.py  the grammar as text: quotes, brackets
mistakes.py  what is wrong with an argument, and how it is written
"""

from rollyard.services.config.overrides.override import Override, apply, parse_overrides, shown

__all__ = ["Override", "apply", "parse_overrides", "shown"]
