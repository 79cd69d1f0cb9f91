"""netq compared with its alternatives, in the same run: `make bench` writes docs/reference/benchmarks.md."""
