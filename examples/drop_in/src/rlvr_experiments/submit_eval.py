"""Submits an evaluation to SageMaker: the original script's path to `ng_submit eval`, with the same arguments."""

import sys

from rollyard.cli.submit import main

if __name__ == "__main__":
    main(["eval", *sys.argv[1:]])
