"""Trains a model on GSM8K. The options are listed by --help."""

from rollyard.resources_servers.gsm8k.train import main
from rollyard.services.io.script import run_script

if __name__ == "__main__":
    run_script(main)
