"""Federated learning in small: four clients, one aggregator, handwritten digits, on one machine, over mutual TLS."""
