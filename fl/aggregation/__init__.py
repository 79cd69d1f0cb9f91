"""Aggregation kernels: the running mean, robust statistics, and the store of a round's updates on disk.

Numerical code over blocks of tensors; knows neither clients nor rounds. May import fl.tensors and fl.errors.
"""
