"""A federation on one machine: virtual clients on an engine, or a server and clients over a real transport.

May import fl.server and fl.client and all that those may import.
"""
