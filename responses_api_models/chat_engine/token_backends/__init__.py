"""Token backends: the APIs through which an engine accepts and returns token ids."""
