"""HTTP below the transports: plain connections, a general client, proxies, and the listener; all within limits."""
