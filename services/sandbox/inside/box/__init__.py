"""Runs inside a shell box: sets up its namespaces and files, then executes commands. See services/sandbox/shell."""
