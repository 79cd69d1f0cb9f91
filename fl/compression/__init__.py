"""Compression of updates: quantisation, sparsification, and the packed form that travels.

May import fl.tensors and fl.errors.
"""
