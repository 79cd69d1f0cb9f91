"""Published results of federated learning, computed again with fl: docs/reference/results.md has their tables."""
