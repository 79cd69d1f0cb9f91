"""Applies the policy of a device to each task, reply and text, in the agent's process.

    a task arrives ─► approved? ─► budget left? ─► the child does it ─► what may leave, with noise ─► counted ─► audited

Owned by edge/agent.py, in its thread. Imports numpy only for noise. What the training process does besides the agent,
such as a connection of its own, is not seen here.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edge.approvals import Approvals, Source
from edge.audit import Audit
from edge.child import ChildFailed
from edge.outgoing import FAILED, PASSED, Allowed, Withheld, names_of
from edge.policy import Policy
from edge.record import Record
from netq.errors import NotNow, Unreadable
from netq.text import describe
from netq.utils.stream import Stream

if TYPE_CHECKING:
    from edge.budget import Budget

log = logging.getLogger("edge")

_LONGEST = 1000  # characters of a text of the training in a line of the audit log


class Rules(NamedTuple):
    """How the messages of a kind of work are read.

    source:  of a task, from its envelope and its plain values.
    allowed: see edge/outgoing.py.
    noised:  see edge/noising.py.
    """

    source: Callable[[Any, Any], Source]
    allowed: Callable[[Policy, Any, Stream, Collection[str]], Allowed]
    noised: Callable[[Policy, Stream, Stream], Stream]


class Guard:
    """The policy of one device at work. Raises InvalidOption, NotNow, OSError.

    server: for the audit log.
    """

    def __init__(self, policy: Policy, rules: Rules, state: Path | None, server: str) -> None:
        self.policy = policy
        self._rules = rules
        self._server = server
        self._approvals = Approvals(state) if policy.approve and state is not None else None
        self._budget = _budget(policy, state) if policy.noises and state is not None else None
        try:
            self._audit = None if policy.audit is None else Audit(policy.audit)
        except OSError as error:
            raise NotNow(f"policy.audit: {policy.audit}: cannot be read and written ({error.strerror})") from None
        self._task = Stream()  # the present one, if there is noise
        self._known: Collection[str] = ()  # names of its tensors
        self._source = ""
        self._said = ""  # the last refusal that the log has

    def key(self, task: Any) -> str:
        """Return the key of the stored reply to a task."""
        return f"{task.key}{self.policy.mark}"

    def begin(self, task: Any) -> str:
        """Take a task. Return why it is not done, whatever is stored; "" if it may be."""
        if task.job is None or not (self.policy.inspects or self._approvals):
            return ""
        self._source = ""
        try:
            plain = PASSED.load(task.stream)
            self._known = names_of(plain)
            source = None if self._approvals is None else self._rules.source(task, plain)
        except (Unreadable, KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError) as error:
            return f"the task cannot be read: {describe(error)}"
        if self.policy.noises:
            self._task = Stream(task.stream.buffers)  # the child's side empties the other
        self._source = "" if source is None else source.hash
        return "" if source is None or self._approvals is None else self._approvals.missing(source)

    def is_spent(self, task: Any) -> str:
        """Return why there is no budget for a task; "" if there is."""
        return "" if self._budget is None or task.job is None else self._budget.is_spent()

    def allowed(self, task: Any, record: Record) -> Allowed | str:
        """Return what may leave of a reply, with its noise, or why nothing does. Counts the noise."""
        try:
            found = self._rules.allowed(self.policy, task, Stream.of(record.reply), self._known)
            return self._with_noise(found) if self.policy.noises and found.tensors else found
        except Withheld as error:
            return self._withheld(task, str(error), names=error.names)
        except OSError as error:
            told = f"the policy of this device withholds it: its budget cannot be stored ({error.strerror})"
            return self._withheld(task, told)
        except Exception as error:  # what a training has written may raise anything
            told = "the policy of this device withholds a reply that it cannot read, or give noise to"
            return self._withheld(task, f"{told}; the reason is in its log", why=describe(error))
        finally:
            self._task = Stream()

    def _with_noise(self, found: Allowed) -> Allowed:
        assert self._budget is not None  # Policy.check
        message = self._rules.noised(self.policy, self._task, found.message)
        if why := self._budget.is_spent():
            raise Withheld(why)
        self._budget.spend()
        log.info("epsilon is %.3g, at delta %g", self._budget.epsilon, self.policy.delta)
        return found._replace(message=message, size=message.nbytes)

    def reason(self, error: ChildFailed | str) -> str:
        """Return what the server may know of a training that has failed. Its exit status could carry data, too."""
        return FAILED if self.policy.restricts else str(error)

    def told(self, task: Any, error: ChildFailed | str) -> str:
        """Note that a training has failed. Return what the server is told."""
        return self.text(task, "failed", self.reason(error), why=str(error))

    def text(self, task: Any, what: str, text: str, *, why: str = "", names: Collection[str] = ()) -> str:
        """Note why there is no reply. Return what the server is told."""
        more = {"names": list(names)} if names else {}
        return self._note(task, {"what": what, "why": (why or text)[:_LONGEST], **more}) or text

    def refused(self, task: Any, why: str) -> str:
        """Note that a task is not done. Return what the server is told. The log has a reason once."""
        log.log(logging.DEBUG if why == self._said else logging.WARNING, "%s: not done: %s", task.title, why)
        self._said = why
        return self.text(task, "refused", why)

    def _withheld(self, task: Any, told: str, *, why: str = "", names: Collection[str] = ()) -> str:
        log.warning("%s: withheld: %s", task.title, why or told)
        return self.text(task, "withheld", told, why=why, names=names)

    def sends(self, task: Any, message: Stream, found: Allowed | None) -> str:
        """Note that a reply leaves; None: that a stored one does again. Return why it may not; "" if it may."""
        if self._audit is None:
            return ""
        digest = hashlib.sha256()
        for buffer in message.buffers:
            digest.update(buffer)
        entry: dict[str, Any] = {
            "what": "sent again" if found is None else "sent",
            "bytes": message.nbytes,
            "reply": digest.hexdigest(),
        }
        if found is not None:
            entry |= {"tensors": found.tensors, "metrics": found.metrics, "withheld": found.withheld}
            entry |= {"said": found.said[:_LONGEST]} if found.said else {}
        return self._note(task, entry)

    def _note(self, task: Any, entry: dict[str, Any]) -> str:
        """Write a line of the audit log. Return why that fails: then no reply leaves."""
        if self._audit is None:
            return ""
        budget = {} if self._budget is None else {"epsilon": _finite(self._budget.epsilon), "delta": self.policy.delta}
        source = {"source": self._source} if self._source else {}
        try:
            self._audit.add({"server": self._server, "task": task.title, "key": task.key, **source, **entry, **budget})
        except OSError as error:
            log.error("%s: %s: cannot be written (%s): no reply leaves", task.title, self.policy.audit, error.strerror)
            return f"the policy of this device withholds it: its audit log cannot be written ({error.strerror})"
        return ""


def _budget(policy: Policy, state: Path) -> Budget:
    from edge.budget import Budget  # numpy

    return Budget(policy, state)


def _finite(number: float) -> float | None:
    """Return a number as JSON has it."""
    return number if math.isfinite(number) else None
