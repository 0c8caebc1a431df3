"""Servers that do not use Rollyard's protocol between servers: NeMo Gym's programs, and servers that run elsewhere.

foreign_servers.py    the foreign servers of a run: what starts and watches them
external_servers.py   watches servers that run elsewhere
foreign_launcher.py   starts NeMo Gym's programs and watches whether they respond
foreign_process.py    such a program as a process of the supervisor
uv_environment.py     installs the packages that a server's folder requires
launch_config.py      the config that NeMo Gym's programs read from their environment
addresses.py          ports that are chosen before the start, because those programs need to know all of them
health_probe.py       whether a server responds, and what it has to say so
bootstrap.py          what the interpreter runs first
"""
