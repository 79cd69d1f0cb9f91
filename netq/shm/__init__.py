"""Shared memory, for peers on one host: Linux."""
