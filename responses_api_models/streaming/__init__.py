"""Server-sent events: parsing, proxying, and building Responses streams from chat chunks."""
