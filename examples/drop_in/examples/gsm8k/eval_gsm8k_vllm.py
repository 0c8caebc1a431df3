"""Evaluates a model on GSM8K. The options are listed by --help."""

from rollyard.records.script import run_script
from rollyard.resources_servers.gsm8k.evaluate import main

if __name__ == "__main__":
    run_script(main)
