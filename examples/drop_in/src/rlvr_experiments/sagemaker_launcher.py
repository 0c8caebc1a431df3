"""Runs one host of a SageMaker job, for images whose entry point names this path."""

import sys

from rollyard.launchers.sagemaker.container.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
