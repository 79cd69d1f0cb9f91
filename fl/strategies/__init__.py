"""Strategies: which clients train, with what configuration, and how updates become the next model.

May import fl.aggregation, fl.compression, fl.tensors, fl.messages and fl.errors. A strategy never sees a connection.
"""
