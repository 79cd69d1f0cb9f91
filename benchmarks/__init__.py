"""netq beside what a user would take instead, in the same run: `make bench` writes docs/benchmarks.md."""
