"""What keeps strangers out: `tls` (a layer that a link puts between itself and its socket), `certificates` (for tests)."""
