"""A callback for MLflow. A thread of its own sends, because MLflow's server may be slow or unreachable.

Imports mlflow when it is made. MLflow's client reads the number of retries and the timeout of a call from the
environment: MLFLOW_HTTP_REQUEST_MAX_RETRIES and MLFLOW_HTTP_REQUEST_TIMEOUT. It can log asynchronously by itself, but
drops a batch that failed; docs/explanation/design.md, "Libraries taken and not taken".
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

from fl.callbacks.base import Callback
from fl.callbacks.jsonl import missing, scalars
from fl.report import RoundReport
from fl.tensors.spec import Model
from netq.errors import AddressError
from netq.text import printable

log = logging.getLogger("netq.fl")

_CLOSE_TIMEOUT = 10.0  # seconds that `close` waits for calls that are not sent yet
# Errors after which a call is tried again. INTERNAL_ERROR is what MLflow's client reports when there is no answer.
_RETRY = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
_REFUSED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST")  # errors that one number of a batch may cause
# What MLflow refuses in a name after "metrics/", and "/": a store of files would take "a/b" for a file in a folder "a".
_UNSAFE = re.compile(r"[^\w .-]|^\.*$")


class MLflow(Callback):
    """Logs the scalars of each round to an MLflow server, as one run. A context manager.

    `uri`: address of the server, as in "http://mlflow.local:5000". Raises netq.AddressError if it does not answer at
    the start. Later it may be slow or unreachable: rounds continue, the outage is logged once, and the metrics are kept
    and sent with the next round. `close` waits 10 s for them, and logs how many were not sent.

    A name of a client's metric gets "_" in place of the characters that MLflow refuses, and of "/".
    """

    def __init__(self, uri: str, experiment: str = "federation") -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        except ImportError as error:
            raise missing("fl.MLflow", "mlflow", "mlflow-skinny", error) from error
        self._uri, self._metric, self._error = uri, Metric, MlflowException
        self._client: Any = MlflowClient(tracking_uri=uri)
        try:
            self._run = self._begin(experiment)
        except MlflowException as error:
            why_not = f"MLflow does not answer at {uri} ({_reason(error)}); start its server, or correct the address"
            raise AddressError(why_not) from error
        self._pending: deque[Callable[[], Any]] = deque()  # calls that have not succeeded yet, in order
        self._wake, self._closing, self._failing, self._refusing = threading.Event(), False, False, False
        self._thread = threading.Thread(target=self._send, name="mlflow", daemon=True)  # does not delay process exit
        self._thread.start()

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Queue the round's numbers."""
        now = int(time.time() * 1000)
        numbers = _named(scalars(report))
        metrics = [self._metric(name, value, now, report.number) for name, value in numbers.items()]
        self._pending.append(functools.partial(self._log, metrics))
        self._wake.set()

    def close(self, status: str = "FINISHED") -> None:
        """End the run after all is logged; wait 10 s at most."""
        if self._closing:
            return
        self._pending.append(functools.partial(self._client.set_terminated, self._run, status))
        self._closing = True
        self._wake.set()
        self._thread.join(_CLOSE_TIMEOUT)
        if left := len(self._pending):
            log.warning("MLflow at %s has not got the end of the run, and %d of its rounds", self._uri, left - 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    def _begin(self, experiment: str) -> str:
        """Begin a run, and return its id."""
        found = self._client.get_experiment_by_name(experiment)
        id = self._client.create_experiment(experiment) if found is None else found.experiment_id
        return str(self._client.create_run(id).info.run_id)

    def _send(self) -> None:
        """Make the calls, in the thread. A call that failed is tried again when the next one is queued."""
        closing = False
        while not closing:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing  # read first: if it is set, no further call is queued
            while self._pending and self._try(self._pending[0]):
                self._pending.popleft()

    def _log(self, metrics: list[Any]) -> None:
        """Log numbers. If the server refuses one of them, log the others: it refuses a batch as a whole."""
        try:
            self._client.log_batch(self._run, metrics=metrics)
        except self._error as error:
            if error.error_code not in _REFUSED:
                raise
            if len(metrics) > 1:
                half = len(metrics) // 2
                self._log(metrics[:half])
                self._log(metrics[half:])
            elif not self._refusing:
                self._refusing = True
                text = "MLflow at %s refuses %s (%s); it gets the other numbers (said once)"
                log.warning(text, self._uri, metrics[0].key, _reason(error))

    def _try(self, call: Callable[[], Any]) -> bool:
        """Make a call; return False if it must be tried again."""
        try:
            call()
        except self._error as error:
            again = error.error_code in _RETRY
            if not self._failing:
                what = "does not answer" if again else "refuses a call"
                meanwhile = "and are kept for it" if again else "and this is not logged there"
                log.warning("MLflow at %s %s (%s); rounds go on, %s", self._uri, what, _reason(error), meanwhile)
            self._failing = True
            return not again
        if self._failing:
            log.warning("MLflow at %s answers again", self._uri)
        self._failing = False
        return True


def _named(numbers: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers under names that MLflow takes. Of two that become the same, the second gets a hash."""
    found: dict[str, float] = {}
    for name, value in numbers.items():
        kind, slash, rest = name.partition("/")
        safe = f"{kind}/{_UNSAFE.sub('_', rest)}" if slash else name
        if safe in found:
            safe = f"{safe}_{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
        found[safe] = value
    return found


def _reason(error: BaseException) -> str:
    """Return the innermost cause in one line: MLflow wraps errors of requests, which wraps those of urllib3."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return printable(textwrap.shorten(str(error) or type(error).__name__, 200, placeholder=" …"))
