"""Environment: task folders in Harbor's format. The model works in a shell; the task's own tests give the reward."""
