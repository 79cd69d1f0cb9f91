"""Runs the ServerApp over netq: no SuperLink, no SuperNode."""

from server_app import app

import fl.flower
import netq

options = netq.CommunicatorOptions(netloc=netq.NetworkLocation("127.0.0.1", 51966))
fl.flower.run(app, options, min_nodes=2)
