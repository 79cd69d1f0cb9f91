"""netq."""
