"""Pure functions on plain dicts that convert between OpenAI's Responses and Chat Completions APIs."""
