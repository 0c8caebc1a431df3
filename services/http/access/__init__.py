"""Access control for servers without a token: rejects unknown host names, web pages and other users of the host.

`hosts.py` checks the Host header, `socket_owners.py` asks the kernel which user owns a socket, `peer_user.py` looks up
the owner once per connection, and `request_checks.py` decides whether a request is allowed.

Requests from root and from the server's own user are allowed, including those that arrive through that user's reverse
proxy or SSH tunnel.
"""
