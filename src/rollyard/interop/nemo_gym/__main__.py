"""Prints the folder to put in PYTHONPATH: `PYTHONPATH=$(python -m rollyard.interop.nemo_gym) python train.py`."""

from rollyard.interop.nemo_gym import path_entry

print(path_entry())
