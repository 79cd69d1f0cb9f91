"""Tools for tests of netq, and for tests of transports that others write: docs/how-to/transport.md."""
