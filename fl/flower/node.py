"""A node: runs an unmodified Flower ClientApp for a grid (fl/flower/grid.py), in one thread, the caller's."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from flwr.app import Context, Error, Message, Metadata, RecordDict

import netq
from fl.flower._compat import SUPERLINK_NODE_ID, ErrorCode, make_message
from fl.flower.apps import ClientApp, check_client_app
from fl.flower.grid_messages import MESSAGES, Ask, Reply, check_config, message_id, node_id, read_ask, write_reply
from netq.text import printable

log = logging.getLogger("netq.fl")


class Node:
    """Runs a ClientApp whenever a grid has a message for it.

    client_app:  flwr.clientapp.ClientApp, of the message API or with a `client_fn`; nothing of it is to be changed.
                 A function of (message, context) may stand for one.
    node_config: what it finds in `context.node_config`, as in {"partition-id": 0, "num-partitions": 2}.
    copy:        whether `numpy()` of the arrays in a message gives a copy each time, as Flower's do. Without, it is
                 the message's own memory: for an app that does not change it in place and then ask for it again.

    What the app keeps in `context.state` it finds there again, until the grid ends; an app that raises leaves it as it
    was, and the grid gets an error with the reason. Raises InvalidOption for what is no such app, and Unreadable for a
    config that is none.
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_config: Mapping[str, bool | int | float | str] | None = None,
        *,
        copy: bool = True,
    ) -> None:
        check_client_app("Node.client_app", client_app)
        self._app = client_app
        self._config = dict(node_config or {})
        check_config(self._config)
        self._copy = copy

    def run(self, options: netq.CommunicatorOptions | None = None, protocol: netq.Protocol = netq.Protocol.TCP) -> None:
        """Take part until the grid is closed. An absent grid is waited for, a lost one too.

        The options' serialisation is replaced by that of the grid's messages. Raises what netq.new raises.
        """
        options = replace(options or netq.CommunicatorOptions(), serialization=MESSAGES)
        with netq.new(protocol, netq.Purpose.CLIENT, options) as grid:
            context = Context(0, node_id(grid.id), self._config, RecordDict(), {})
            while True:
                try:
                    ask = read_ask(grid.get().data, copy=self._copy)
                except netq.Closed:
                    return
                except netq.Unreadable as error:
                    log.error("a message of the grid cannot be read: %s", error)
                    reason = f"node {context.node_id} ({grid.id}): cannot read what it was sent: {error}"
                    _put(grid, Reply(None, Error(ErrorCode.MESSAGE_UNAVAILABLE, reason)))
                    continue
                content, context = self._answer(ask, self._context(context, ask))
                _put(grid, Reply(ask.batch, content))
                del ask, content  # their memory, before that of the next comes

    def _context(self, before: Context, ask: Ask) -> Context:
        """The run's context: the one of before, or a new one in a new run."""
        if before.run_id == ask.run:
            return before
        return Context(ask.run, before.node_id, self._config, RecordDict(), dict(ask.run_config))

    def _answer(self, ask: Ask, context: Context) -> tuple[RecordDict | Error, Context]:
        """Return what the app says, and the context that it leaves: where it fails, the one that it found."""
        log.info("%s", _title(ask))
        theirs = _copy_of(context)
        try:
            reply = self._app(_message(ask, context.node_id), theirs)
            if not isinstance(reply, Message):
                raise TypeError(f"{self._app!r} returned a {type(reply).__name__}; expected a flwr.app.Message")
        except Exception as error:  # the user's code: its failure is an answer
            log.exception("the ClientApp failed")
            return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>"), context  # Flower's form
        return (reply.error if reply.has_error() else reply.content), theirs


def _title(ask: Ask) -> str:
    """What a message asks for, and in which round: its group, for a legacy app; else what FedAvg says in the config."""
    rounds = [record.get("server-round", "") for record in ask.content.config_records.values()]
    return printable(f"{ask.message_type} {ask.group_id or next(iter(rounds), '')}".rstrip())


def _copy_of(context: Context) -> Context:
    state = RecordDict({name: record.copy() for name, record in context.state.items()})
    return Context(context.run_id, context.node_id, dict(context.node_config), state, dict(context.run_config))


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


def _put(grid: netq.Communicator, reply: Reply) -> None:
    """Put a reply, and wait until the grid has it: its arrays may be memory that the app changes for the next."""
    try:
        error = grid.put(write_reply(reply)).exception()
    except Exception as raised:  # the user's content: serialising it may raise anything
        error = raised
    if error is None or isinstance(error, netq.Closed):  # which says `get`, too
        return
    log.error("the reply cannot be sent: %s", error)
    reason = f"{type(error)}:<'its reply cannot be sent: {error}'>"
    _put(grid, Reply(reply.batch, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)))
