"""For netq's own tests and for those of whoever writes a transport: docs/how-to/transport.md."""
