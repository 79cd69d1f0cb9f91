"""Public tools that are used together with a communicator: see `netq.utils.stream`."""
