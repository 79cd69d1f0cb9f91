"""Homomorphic encryption: clients encrypt their updates by CKKS, and the server adds ciphertexts that it cannot read.

docs/how-to/homomorphic.md says who can read what.
"""
