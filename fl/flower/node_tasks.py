"""Replies to the messages of a grid: runs the ClientApp, and keeps its context. Knows no communicator.

Used by fl/flower/node.py, and by the child process of edge (edge/flower_tasks.py). The counterpart of fl/trainer.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, Metadata, RecordDict

from fl.envelope import Finished
from fl.flower import messages
from fl.flower._compat import SUPERLINK_NODE_ID, make_message
from fl.flower.apps import ClientApp
from fl.flower.envelope import Ask as Envelope
from fl.flower.envelope import Failure, Files
from fl.flower.messages import MESSAGES, Ask, Reply, message_id, read
from fl.flower.record_codec import decode, encode
from fl.flower.signed_app import ReceivedApps, SignedApp
from netq.errors import SecurityError, Unreadable
from netq.text import describe, text_of

log = logging.getLogger("netq.fl")


class NodeTasks:
    """A node's app and its context. The arguments are those of fl.flower.Node.

    node:  the node's id, for its context.
    usage: called after the app; returns what it has used, for the grid.
    """

    def __init__(
        self,
        app: ClientApp | ReceivedApps,
        node: int,
        config: Mapping[str, bool | int | float | str],
        *,
        copy: bool = True,
        usage: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self._app = app
        self._config = config
        self._copy = copy
        self._usage = usage
        self._context = Context(0, node, dict(config), RecordDict(), {})

    def answer(self, task: Envelope | Files) -> Finished | str:
        """Reply to a message, or store an app. Return the reply as bytes, or the reason why there is none."""
        try:
            found = MESSAGES.load(task.stream) if task.values is None else task.values
            message = read(found, copy=self._copy)
        except Unreadable as error:
            log.error("%s: the message cannot be read: %s", task.title, error)
            return f"the message cannot be read: {error}"
        if isinstance(task, Files):
            assert isinstance(message, messages.Files)
            return self._store(message.version, message.app) or Finished(task.job, MESSAGES.dump(None), 0)
        assert isinstance(message, Ask)
        return self._reply(task, message)

    def save(self) -> dict[str, Any]:
        """Return what another NodeTasks needs to go on as this one would. The arrays are not copied."""
        context = self._context
        return {"run": context.run_id, "config": dict(context.run_config), "state": encode(context.state)}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on from what `save` has returned. Raises ValueError for other values."""
        try:
            state = decode(saved["state"], copy=True)
            self._context = Context(saved["run"], self._context.node_id, dict(self._config), state, saved["config"])
        except (KeyError, TypeError, Unreadable) as error:
            raise ValueError(f"these are no values of a node: {error}") from error

    def _reply(self, task: Envelope, ask: Ask) -> Finished | str:
        """Run the app, and keep its context if there is a reply."""
        log.info("%s", task.title)
        context = self._context_for(ask)
        content = self._run(ask, context)
        if isinstance(content, str):
            return content
        try:
            message = MESSAGES.dump(_reply(ask.batch, content, self._usage()))
            encode(context.state)
        except Exception as error:  # serialising the user's values may raise anything
            log.error("the reply cannot be sent, or the state not be kept: %s", describe(error))
            return f"{type(error)}:<'its reply cannot be sent, or its state not be kept: {text_of(error)}'>"
        self._context = context
        return Finished(task.job, message, message.nbytes)

    def _store(self, version: str, app: SignedApp | None) -> str:
        """Store the files of an app. Return why they are refused, "" if they are not."""
        assert isinstance(self._app, ReceivedApps)  # others ask for no files
        try:
            if app is None:
                raise SecurityError("the server does not deliver it; start it with --deliver")
            self._app.store(app)
        except (SecurityError, OSError) as error:
            log.error("the app %s is refused: %s", version, error)
            return f"this node refuses the app {version}: {error}"
        log.info("the app %s has arrived, and its signature is right", version)
        return ""

    def _context_for(self, ask: Ask) -> Context:
        """Return a copy of the context, with its state; a new one in a new run."""
        last = self._context
        if last.run_id != ask.run:
            return Context(ask.run, last.node_id, dict(self._config), RecordDict(), dict(ask.run_config))
        state = RecordDict({name: record.copy() for name, record in last.state.items()})
        return Context(last.run_id, last.node_id, dict(last.node_config), state, dict(last.run_config))

    def _run(self, ask: Ask, context: Context) -> Any:
        """Run the app, which may change the context. Return its reply, or the reason why there is none."""
        try:
            app = self._app.client_app(ask.app) if isinstance(self._app, ReceivedApps) else self._app
            if app is None:
                raise SecurityError(f"the app {ask.app} is not here")
            reply = app(_message(ask, context.node_id), context)
            if not isinstance(reply, Message):
                raise TypeError(f"{app!r} returned a {type(reply).__name__}; expected a flwr.app.Message")
        except Exception as error:  # of the user's app: the grid gets it as the reply
            log.exception("node %d: the ClientApp failed", context.node_id)
            return f"{type(error)}:<'{text_of(error)}'>"  # Flower's form
        return reply.error if reply.has_error() else reply.content


def _reply(batch: int, content: RecordDict | Error, usage: Mapping[str, float]) -> Reply | Failure:
    if isinstance(content, Error):
        return Failure(batch, content.reason or "", content.code)
    return Reply(batch, content, dict(usage))


def _message(ask: Ask, node: int) -> Message:
    metadata = Metadata(
        run_id=ask.run,
        message_id=message_id(ask.batch, node),
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=node,
        reply_to_message_id="",
        group_id=ask.group_id,
        created_at=ask.created_at,
        ttl=ask.ttl,
        message_type=ask.message_type,
    )
    return make_message(metadata, content=ask.content)
