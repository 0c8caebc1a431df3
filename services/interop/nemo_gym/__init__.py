"""NeMo Gym's stacks under Rollyard's commands, and the names that trainers import from NeMo Gym."""
