"""A Flower app that learns handwritten digits."""
