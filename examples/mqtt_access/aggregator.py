"""The server: fits a line to the data of two boards, through an MQTT broker."""

import numpy as np

import fl
import netq

options = netq.CommunicatorOptions(
    netloc=netq.NetworkLocation("127.0.0.1", 18830),
    mqtt=netq.MqttOptions(prefix="farm/north", user="aggregator", password="aggregator-password"),
)
with fl.Server({"line": np.zeros(2, np.float32)}, options, min_clients=2, protocol=netq.Protocol.MQTT) as server:
    server.wait(2)
    for report in server.rounds(3):
        print(report)
    slope, offset = server.model["line"]
    print(f"y = {slope:.1f} x + {offset:.1f}")
