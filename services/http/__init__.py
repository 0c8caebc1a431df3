"""HTTP clients (connection pool, aiohttp, proxies) and the listener, with limits on the size of every message."""
