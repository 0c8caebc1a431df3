"""Rollouts -> numbers. `reading` makes `columns` of a file, `asked` knows what is missing, the rest are pure functions:
`profile` (one run) and `comparison` (two) put the `estimators` together into `records`.
"""
