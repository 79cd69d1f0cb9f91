"""TCP, plain or under TLS: one socket a link."""
