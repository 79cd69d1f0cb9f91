"""What netq costs, measured: `make bench`."""
