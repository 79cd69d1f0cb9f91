"""Topics, work queues, services and messages between clients, through one server: an exchange.

    with netq.exchange.Exchange() as exchange: ...          # or `netq exchange`, in a shell

    with netq.exchange.Client() as client:
        client.subscribe("plant/#")
        client.publish("plant/3/temperature", 21.5)
        print(client.get())

Works over every transport. Start at `Exchange` and `Client`; docs/how-to/exchange.md shows each of them.
"""

from __future__ import annotations

from netq.exchange.client import Client, Received
from netq.exchange.jobs import Counts
from netq.exchange.permissions import Permission
from netq.exchange.server import Exchange, ExchangeStatistics
from netq.exchange.worker import Job, Worker

__all__ = ["Client", "Counts", "Exchange", "ExchangeStatistics", "Job", "Permission", "Received", "Worker"]
