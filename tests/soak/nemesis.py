"""Makes the faults of the schedule, at their times, and ends all faults at the end of a run.

Runs in a thread of tests/soak/run.py. Other threads do the restarts, because a close may take a second.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Executor, Future

from netq.testing.proxy import Proxy
from tests.servers.mosquitto import Mosquitto
from tests.soak.life import LIMIT, Side
from tests.soak.recorder import Recorder
from tests.soak.schedule import Fault, Kind, Step
from tests.soak.traffic import Traffic

_SETTINGS = {  # attributes of a proxy that a fault sets and its end resets
    Kind.DELAY: ("latency", "jitter"),
    Kind.SLICE: ("slice",),
    Kind.SLOW: ("bandwidth",),
    Kind.SLOW_CLOSE: ("slow_close",),
}


class Nemesis:
    """Makes the faults of a run. `sides` and `proxies` are by number; 0 is the server, which has no proxy."""

    def __init__(
        self,
        sides: dict[int, Side],
        proxies: dict[int, Proxy],
        broker: Mosquitto | None,
        traffic: Traffic,
        recorder: Recorder,
        pool: Executor,
    ) -> None:
        self.done: Counter[str] = Counter()  # by kind
        self._sides = sides
        self._proxies = proxies
        self._broker = broker
        self._traffic = traffic
        self._recorder = recorder
        self._pool = pool
        self._restarts: list[Future[None]] = []
        self._healthy = {
            name: getattr(proxy, name) for proxy in proxies.values() for names in _SETTINGS.values() for name in names
        }

    def run(self, steps: list[Step], stop: threading.Event) -> None:
        """Do the steps, each at its time, until `stop` is set."""
        for step in steps:
            if stop.wait(max(0.0, step.time - self._recorder.time)):
                return
            if step.begins:
                self._recorder.note("fault", f"begin {step.fault}")
                self._begin(step.fault)
                self.done[step.fault.kind] += 1
            else:
                self._recorder.note("fault", f"end {step.fault}")
                self._end(step.fault.kind, step.fault.client)

    def heal(self) -> None:
        """End all faults, and wait for the end of all restarts."""
        for side in self._sides.values():
            side.resume()
        for client in self._proxies:
            for kind in (*_SETTINGS, Kind.REFUSE, Kind.HOLE):
                self._end(kind, client)
        for restart in self._restarts:
            restart.result(LIMIT)
        self._recorder.note("fault", "all healed")

    def _begin(self, fault: Fault) -> None:
        self._traffic.burst(fault.client)
        match fault.kind:
            case Kind.CLIENT | Kind.SERVER:
                self._restarts.append(self._pool.submit(self._sides[fault.client].restart))
            case Kind.BROKER:
                self._restarts.append(self._pool.submit(self._restart_broker))
            case Kind.CANCEL:
                self._traffic.cancel(fault.client)
            case Kind.STOP:
                self._sides[fault.client].stop()
            case kind if kind in _SETTINGS:
                for name, amount in zip(_SETTINGS[kind], fault.amounts, strict=True):
                    setattr(self._proxies[fault.client], name, type(self._healthy[name])(amount))
            case _:
                self._break(fault, self._proxies[fault.client])

    def _break(self, fault: Fault, proxy: Proxy) -> None:
        count = int(fault.amounts[0]) if fault.amounts else 0
        match fault.kind:
            case Kind.CUT:
                proxy.cut()
            case Kind.CUT_AFTER:
                proxy.cut_after(count)
            case Kind.RESET:
                proxy.reset()
            case Kind.RESET_AFTER:
                proxy.reset_after(count)
            case Kind.HOLE | Kind.LONG_HOLE:
                proxy.hold(after=count)
            case Kind.REFUSE:
                proxy.refusing = True

    def _restart_broker(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        self._broker.start()

    def _end(self, kind: Kind, client: int) -> None:
        match kind:
            case Kind.STOP:
                self._sides[client].resume()
            case Kind.HOLE | Kind.LONG_HOLE:
                self._proxies[client].release()
            case Kind.REFUSE:
                self._proxies[client].refusing = False
            case _:
                for name in _SETTINGS[kind]:
                    setattr(self._proxies[client], name, self._healthy[name])
