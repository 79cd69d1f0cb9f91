"""Multicast: a large message that a server puts to several clients is published once.

The server (groups.py) publishes each block of the message once, on the topic of a group (group.py). On the topic of
its own link each member gets a reference instead of the block. The client (reorder.py) keeps a block until its
reference arrives.
"""
