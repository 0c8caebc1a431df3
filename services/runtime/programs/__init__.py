"""Programs that a command starts and that end with it: `ng_run`, the collector, Ray.

process_group.py   runs a command in its own process group, and kills all its processes when the parent has exited
program.py         one such command, with its output in a log file
program_errors.py  explains how a program ended
servers.py         waits until an `ng_run` has started its servers
"""
