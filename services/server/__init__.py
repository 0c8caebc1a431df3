"""Server: a named FastAPI app with settings, metrics, OpenAPI, and one place that turns errors into responses."""
