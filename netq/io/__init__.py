"""Waiting and moving bytes: the event loop, its baton, poller and timers, sockets with or without TLS, connecting.

Knows nothing of messages, sessions or peers. May import netq.errors, netq.protocol.memory, netq.text, netq.options,
netq.protocol (the size of a frame's header) and netq.security.
"""
