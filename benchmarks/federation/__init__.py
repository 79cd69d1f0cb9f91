"""Rounds of federated learning with a model of 100 MB, compared with Flower's: python -m benchmarks.federation."""
