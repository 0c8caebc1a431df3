"""What all protocols share: the environment, its tasks, its episodes, and the listener."""
