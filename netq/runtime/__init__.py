"""Connects the pure protocol to threads and links: endpoint, peers, inbox, deliveries.

Owns the contract that a transport fulfils (link.py). May import netq.protocol, netq.io and what those may import. Must
not import a transport.
"""
