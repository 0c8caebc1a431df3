"""Access control of servers without a token: rejects unknown host names, web pages and other users of the host.

`hosts.py` checks the names by which a server may be called, `socket_owners.py` queries the kernel for a socket's owner,
`peer_user.py` does so once per connection, and `request_checks.py` decides on a request.

It does not reject processes of the same user or of root, nor requests through this user's reverse proxy or SSH tunnel.
"""
