"""MQTT 5: server and clients are clients of one broker, and a link is a pair of topics."""
