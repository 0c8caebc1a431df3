"""Training configs of rlvr-experiments, as the settings of ng_train.

rlvr_config.py   the sections of the YAML file
conversion.py    the file as a TrainConfig, with notes on what differs
"""
