"""A callback for MLflow. Called by the server's thread; one of its own sends, as MLflow's server may be far away.

Needs mlflow, and imports it when made. How often and how long a call is tried is said by the environment's
MLFLOW_HTTP_REQUEST_MAX_RETRIES and MLFLOW_HTTP_REQUEST_TIMEOUT, which MLflow's client reads.
"""

from __future__ import annotations

import functools
import logging
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from fl.callbacks.base import Callback
from fl.callbacks.jsonl import missing, scalars
from fl.report import RoundReport
from fl.tensors.spec import Model
from netq.errors import AddressError

log = logging.getLogger("netq.fl")

_LINGER = 10.0  # seconds that `close` waits for what has not gone yet
_LATER = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")  # MLflow's client says so of no answer


class MLflow(Callback):
    """Logs the scalars of each round to an MLflow server, as one run. A context manager.

    uri: of the server, as in "http://mlflow.local:5000". Raises netq.AddressError, if it does not answer. Later it may
    be slow, or away: that does not hold the federation up, and is logged once. The rounds are kept for it meanwhile,
    and tried again with the next; `close` waits 10 s for them, and logs how many did not go.
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
            self._run = self._begun(experiment)
        except MlflowException as error:
            why_not = f"MLflow does not answer at {uri} ({_reason(error)}); start its server, or correct the address"
            raise AddressError(why_not) from error
        self._waiting: deque[Callable[[], Any]] = deque()  # calls that have not gone, in their order
        self._news, self._closing, self._failing = threading.Event(), False, False
        self._thread = threading.Thread(target=self._send, name="mlflow", daemon=True)  # a process may end without it
        self._thread.start()

    def round_ends(self, report: RoundReport, model: Model) -> None:
        """Have them logged."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, report.number) for name, value in scalars(report).items()]
        self._waiting.append(functools.partial(self._client.log_batch, self._run, metrics=metrics))
        self._news.set()

    def close(self, status: str = "FINISHED") -> None:
        """End the run when all is logged; wait 10 s for that at most."""
        if self._closing:
            return
        self._waiting.append(functools.partial(self._client.set_terminated, self._run, status))
        self._closing = True
        self._news.set()
        self._thread.join(_LINGER)
        if left := len(self._waiting):
            log.warning("MLflow at %s has not got the end of the run, and %d of its rounds", self._uri, left - 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close("FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED")

    def _begun(self, experiment: str) -> str:
        """Begin a run, and return its id."""
        found = self._client.get_experiment_by_name(experiment)
        id = self._client.create_experiment(experiment) if found is None else found.experiment_id
        return str(self._client.create_run(id).info.run_id)

    def _send(self) -> None:
        """Make the calls; after one that failed, when there is another: in the thread."""
        closing = False
        while not closing:
            self._news.wait()
            self._news.clear()
            closing = self._closing  # read before the calls, of which there are then no more
            while self._waiting and self._is_done(self._waiting[0]):
                self._waiting.popleft()

    def _is_done(self, call: Callable[[], Any]) -> bool:
        """Make a call; return whether it need not be made again."""
        try:
            call()
        except self._error as error:
            again = error.error_code in _LATER
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


def _reason(error: BaseException) -> str:
    """Return what is at the bottom of MLflow's errors, of requests's, and of urllib3's, in a line."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return textwrap.shorten(str(error) or type(error).__name__, 200, placeholder=" …")
