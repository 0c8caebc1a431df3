"""Server: a named FastAPI app with settings, metrics, OpenAPI and central error handling."""
