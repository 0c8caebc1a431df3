"""The registry of a run: servers register here, clients ask here where a server listens."""
