"""Compression of updates: quantisation, sparsification, and the packed form that is sent.

May import fl.tensors and fl.errors.
"""
