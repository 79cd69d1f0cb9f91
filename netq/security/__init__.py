"""What keeps strangers out: `tls`, a layer between a link and its socket, and `certificates`, which makes some."""
