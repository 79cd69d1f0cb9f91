"""Complete programs: docs/examples.md."""
