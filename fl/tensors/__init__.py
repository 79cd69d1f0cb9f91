"""Models as tensors: their specification, their elements by block, and their way through a message.

numpy always; torch only where the caller's model holds torch tensors. May import netq and fl.errors.
"""
