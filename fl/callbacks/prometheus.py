"""A callback for Prometheus: a thread of prometheus_client serves the numbers that the server's thread sets.

Imports prometheus_client when it is made.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Self

from fl.callbacks.base import Callback
from fl.callbacks.jsonl import missing
from fl.metrics import scalars
from fl.report import FailureKind, RoundReport
from fl.tensors.spec import Model
from netq.errors import AddressError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

log = logging.getLogger("netq.fl")

_MAX_NAMES = 100  # time series of one gauge: Prometheus keeps each name for ever


class Prometheus(Callback):
    """Serves the numbers of the last round over HTTP, for Prometheus to fetch. A context manager.

    port: 0 lets the system choose a free one; the property `port` returns it.
    host: the address to listen on. There is no authentication, so the default is this machine only.

    Uses a registry of its own. Metrics and evaluation have 100 names each at most, the first of the report: those that
    the server measures, then those that most clients have. Raises netq.AddressError.
    """

    def __init__(self, port: int = 9100, host: str = "127.0.0.1") -> None:
        try:
            import prometheus_client as prometheus
        except ImportError as error:
            raise missing("fl.Prometheus", "prometheus_client", "prometheus_client", error) from error
        registry = prometheus.CollectorRegistry()
        gauge, counter = prometheus.Gauge, prometheus.Counter
        self._numbers = {
            "number": gauge("fl_round", "Number of the last round.", registry=registry),
            "clients": gauge("fl_clients", "Clients whose updates are in the model.", registry=registry),
            "seconds": gauge("fl_round_seconds", "Seconds that the last round took.", registry=registry),
        }
        self._epsilon = gauge(
            "fl_epsilon", "What the models say of a client at most, at a delta.", ["delta"], registry=registry
        )
        self._metrics = _GaugeByName(gauge, "fl_metrics", "Of training, by number of examples.", registry)
        self._evaluation = _GaugeByName(gauge, "fl_evaluation", "Of the new model.", registry)
        self._failures = counter("fl_failures", "Who was asked and is not in the model.", ["why"], registry=registry)
        what = "Who was asked to evaluate, and has not."
        self._unevaluated = counter("fl_evaluation_failures", what, ["why"], registry=registry)
        self._received = counter("fl_bytes_in", "Bytes of messages from clients.", registry=registry)
        self._sent = counter("fl_bytes_out", "Bytes of messages to clients.", registry=registry)
        for why in FailureKind:
            for failures in (self._failures, self._unevaluated):
                failures.labels(why.name.lower())  # begins at 0
        try:
            self._server, self._thread = prometheus.start_http_server(port, host, registry)
        except OSError as error:
            why_not = f"cannot serve Prometheus at {host}:{port} ({error.strerror}); give another port, or 0"
            raise AddressError(why_not) from error

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Set the numbers of this round."""
        for name, value in {"number": report.number, "clients": len(report.clients), "seconds": report.seconds}.items():
            self._numbers[name].set(value)
        if report.privacy is not None:
            self._epsilon.labels(report.privacy.delta).set(report.privacy.epsilon)
        self._metrics.set(scalars(report.metrics))
        self._evaluation.set(scalars(report.evaluation))
        for refusal in report.failures.values():
            self._failures.labels(refusal.why.name.lower()).inc()
        for refusal in report.evaluation_failures.values():
            self._unevaluated.labels(refusal.why.name.lower()).inc()
        self._received.inc(report.bytes_in)
        self._sent.inc(report.bytes_out)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _GaugeByName:
    """A gauge with one time series for each name of the last round; names of older rounds are removed."""

    def __init__(self, gauge: type[Gauge], name: str, what: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._gauge = gauge(name, what, ["name"], registry=registry)
        self._names: set[str] = set()  # the names that are served now
        self._warned = False

    def set(self, values: Mapping[str, float]) -> None:
        """Serve these values, and no others."""
        names = set(islice(values, _MAX_NAMES))
        for name in names:
            self._gauge.labels(name).set(values[name])
        for name in self._names - names:
            self._gauge.remove(name)
        self._names = names
        if len(values) > _MAX_NAMES and not self._warned:
            self._warned = True
            log.warning("%s has %d names; Prometheus gets %d (said once)", self._name, len(values), _MAX_NAMES)
