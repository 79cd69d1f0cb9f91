"""A federation on one machine: server and clients in processes of this host, over a real transport.

May import fl.server and fl.client and all that those may import.
"""
