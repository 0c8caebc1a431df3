"""Access control of servers without a token: checks host names, web pages and other users of the host.

`hosts.py` knows the names by which a server may be called, `sockets.py` asks the kernel who owns a socket, `peer.py`
does so once for each connection, and `checks.py` decides on a request.

Not covered: processes of the same user and of root, and whatever a reverse proxy or an SSH tunnel of this user lets in.
"""
