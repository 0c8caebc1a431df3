"""OpenAI Responses to Chat Completions and back, as pure functions on plain dictionaries."""
