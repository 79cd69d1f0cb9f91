"""The protocol without I/O: frames, lanes, flow control, sessions, connections. See docs/reference/protocol.md.

Every module is pure: bytes and times come in as arguments, bytes and events go out; no socket, no clock, no thread.
May import netq.errors, netq.protocol.memory, netq.text, netq.validate and netq.utils.stream.
"""
