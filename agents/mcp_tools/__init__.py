"""Tools of an environment that offers them over MCP (streamable HTTP) instead of `POST /<tool>`."""
