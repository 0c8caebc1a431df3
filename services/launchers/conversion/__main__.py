"""Runs the command in the environment of the process."""

import os
import sys

from rollyard.services.io.exit_status import exit_status
from rollyard.services.launchers.conversion.command import NAME, main

if __name__ == "__main__":
    sys.exit(exit_status(NAME, lambda: main(environ=os.environ)))
