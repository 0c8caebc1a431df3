"""Access control of servers without a token: checks host names, web pages and other users of the host.

`hosts.py` checks the names by which a server may be called, `socket_owners.py` queries the kernel for a socket's owner,
`peer_user.py` does so once per connection, and `request_checks.py` decides on a request.

Not covered: processes of the same user and of root, and requests through this user's reverse proxy or SSH tunnel.
"""
