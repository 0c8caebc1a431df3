"""The servers that a training run plays on: those of a running stack, or its own.

training_stack.py      what a training run needs to know of them
start_stack.py         connects to a running stack, or starts one and stops it at the end
server_configs.py      the configs of the servers that a run starts; policy_config.py: that of the policy's model server
program_transport.py   says why, if the program that runs the servers has ended
"""
