"""HTTP clients and the listener: pooled connections, an aiohttp client, proxies; every message size is bounded."""
