"""Secure aggregation: a server learns the sum of its clients' updates, and no update.

docs/explanation/secure-aggregation.md has the protocol, what it promises, and to whom.
"""
