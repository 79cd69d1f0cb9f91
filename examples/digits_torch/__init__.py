"""The digits demo with a torch module: examples/digits, but for its model."""
