"""A relay: a client of its parent, and a server for its own clients.

relay.py has the side of the parent, below.py that of the clients.
"""
