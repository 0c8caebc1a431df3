"""A FastAPI app with a name: settings, metrics, OpenAPI, one boundary where errors become answers."""
