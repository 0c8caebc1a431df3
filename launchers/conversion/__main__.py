"""Runs the command in the environment of the process."""

import os
import sys

from rollyard.launchers.conversion.command import NAME, main
from rollyard.records.io.exit_status import exit_status

if __name__ == "__main__":
    sys.exit(exit_status(NAME, lambda: main(environ=os.environ)))
