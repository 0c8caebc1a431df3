"""Evaluates expressions such as `reward < 0.5 and tool_calls > 3` over the rows of a rollout file."""
