"""NeMo Gym's configs and server folders, as they are.

inheritance.py    `_inherit_from`, `_copy`, `_delete_key` and `???` in a merged config
folders.py        which folders are NeMo Gym's servers, and where its files are searched for
foreign.py        settings of such a server, and how it is started
interpreters.py   the Python in which it runs
agents.py         which of Rollyard's agents plays for one that only NeMo Gym has
model_servers.py  settings of its model servers under Rollyard's names
"""
