"""HTTP clients (connection pool, aiohttp, proxies) and the listener. The size of every message is bounded."""
