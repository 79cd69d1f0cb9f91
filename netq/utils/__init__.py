"""Tools of the public API that stand beside the communicator: see `netq.utils.stream`."""
