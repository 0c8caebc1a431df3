"""Submits a training job to SageMaker: the original script's path to `ng_submit`, with the same arguments."""

from rollyard.cli.submit import main

if __name__ == "__main__":
    main()
