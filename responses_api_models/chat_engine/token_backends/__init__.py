"""How an engine accepts and returns token ids."""
