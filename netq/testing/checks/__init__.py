"""The checks of netq/testing/conformance.py, by subject. Each takes what makes a communicator, and asserts."""
