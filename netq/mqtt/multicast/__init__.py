"""One publication for several clients: a large message that a server puts to many enters the broker once.

The server (groups.py) publishes each block of the message once, on the topic of a group (group.py). On the topic of
its own link each member gets a reference in the block's place. The client (reorder.py) keeps the blocks until then.
"""
