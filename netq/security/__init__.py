"""TLS, a layer between a link and its socket (`tls`), and a private authority for it (`certificates`)."""
