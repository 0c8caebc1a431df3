"""The names that trainers import from NeMo Gym, over Rollyard's launcher and servers.

names.py               the small ones: the parser's config, a server's address, the key of the head
trainer_config.py      the merged config of a run that a trainer starts
run_helper.py          RunHelper: starts, watches and stops the servers
collection_helper.py   RolloutCollectionHelper: sends rows to their agents
attempts.py            one row: attempts, and what becomes of a rollout that fails
result.py              turns a rollout into a result that the trainers' post-processing accepts
token_rules.py         the rules for recorded tokens
settings.py            the settings under the config's key `rollout_collection`
"""
