"""A node: runs an unmodified Flower ClientApp for a grid (fl/flower/grid.py), in the caller's thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from flwr.app import Context, Error, Message, Metadata, RecordDict

import netq
from fl.flower._compat import SUPERLINK_NODE_ID, ErrorCode, make_message
from fl.flower.apps import ClientApp, check_client_app
from fl.flower.grid_messages import (
    MESSAGES,
    Ask,
    Reply,
    check_config,
    is_end,
    message_id,
    node_id,
    read_ask,
    read_files,
    write_app,
    write_fetch,
    write_reply,
)
from fl.flower.signed_app import ReceivedApps, SignedApp
from fl.membership import Membership, take_part
from netq.errors import SecurityError
from netq.text import printable

log = logging.getLogger("netq.fl")


class Node:
    """Runs a ClientApp for each message of a grid.

    client_app:  an unmodified flwr.clientapp.ClientApp, with the message API or a `client_fn`; or a function of
                 (message, context). ReceivedApps: the server's app, whose files the server delivers.
    node_config: the app's `context.node_config`, as in {"partition-id": 0, "num-partitions": 2}.
    app_version: AppFolder.version of the app's folder. If that of the server's app is another, both sides log it.
    copy:        whether `numpy()` of an array in a message returns a new copy each time, as in Flower. False: it
                 returns the message's own memory, for apps that do not change an array and then ask for it again.

    The app's `context.state` lasts until the grid ends. If the app raises, the state is as before the message, and the
    grid gets an error with the reason. Raises InvalidOption if `client_app` is not such an app, and Unreadable for an
    invalid config.
    """

    def __init__(
        self,
        client_app: ClientApp | ReceivedApps,
        node_config: Mapping[str, bool | int | float | str] | None = None,
        *,
        app_version: str = "",
        copy: bool = True,
    ) -> None:
        if not isinstance(client_app, ReceivedApps):
            check_client_app("Node.client_app", client_app)
        self._app = client_app
        self._waiting: list[Ask] = []  # for an app whose files this node has asked for
        self._ready: list[Ask] = []  # those, when the files have arrived
        self._refused = ""  # why the files that arrived last are not used
        self._config = dict(node_config or {})
        check_config(self._config)
        self._version = app_version
        self._reported = ""  # version of the server's app, if the difference was reported
        self._copy = copy

    def run(self, options: netq.CommunicatorOptions | None = None, protocol: netq.Protocol = netq.Protocol.TCP) -> None:
        """Take part until its grid ends the run. Waits for a grid that is absent, or lost.

        Its grid is the one to which it connects first, and later the one that has sent it a message last. The options'
        serialisation is replaced by that of the grid's messages. Raises what netq.new raises.
        """
        options = replace(options or netq.CommunicatorOptions(), serialization=MESSAGES)
        context: Context | None = None  # outlives a session that ends before the run

        def serve(grid: netq.Communicator, membership: Membership) -> None:
            nonlocal context
            self._waiting.clear()  # of a session that has ended: its grid waits for no reply
            self._ready.clear()
            context = context or Context(0, node_id(grid.id), self._config, RecordDict(), {})
            while (ask := self._next(grid, membership)) is not None:
                self._compare(grid, ask.app)
                content, context = self._answer(ask, self._context(context, ask))
                _put(grid, Reply(ask.batch, content))
                del ask, content  # free their memory before the next message arrives

        take_part(options, protocol, "run", serve)

    def _next(self, grid: netq.Communicator, membership: Membership) -> Ask | None:
        """Wait for a message of the grid, and return it. Return None when the run, or the session, is over."""
        while not self._ready:
            try:
                peer, plain = grid.get()
                if is_end(plain):
                    if membership.ended(peer):
                        return None
                    continue
                if (files := read_files(plain)) is not None:
                    self._store(*files)
                    continue
                ask = read_ask(plain, copy=self._copy)
            except netq.Closed as error:
                membership.session_ended(error)
                return None
            except netq.Unreadable as error:
                log.error("a message of the grid cannot be read: %s", error)
                reason = f"node {node_id(grid.id)} ({grid.id}): cannot read what it was sent: {error}"
                _put(grid, Reply(None, Error(ErrorCode.MESSAGE_UNAVAILABLE, reason)))
            else:
                membership.asked(peer)
                self._add(grid, ask)
        return self._ready.pop(0)

    def _add(self, grid: netq.Communicator, ask: Ask) -> None:
        """Make a message ready to be answered; if its app is not here, ask for the files first."""
        if not self._is_missing(ask.app):
            self._ready.append(ask)
            return
        if all(each.app != ask.app for each in self._waiting):
            log.info("the server's app has version %s, which is not here: asking for its files", ask.app)
            grid.put(write_fetch(ask.app))
        self._waiting.append(ask)

    def _is_missing(self, version: str) -> bool:
        try:
            return isinstance(self._app, ReceivedApps) and self._app.client_app(version) is None
        except SecurityError as error:  # the author's certificate has changed
            log.warning("the app %s is refused: %s", version, error)
            return True
        except Exception:  # of the app's modules: `_answer` reports it
            return False

    def _store(self, version: str, app: SignedApp | None) -> None:
        """Store an app's files, and make the messages ready that wait for them."""
        ready = [ask for ask in self._waiting if ask.app == version]
        if not ready or not isinstance(self._app, ReceivedApps):
            log.warning("the grid has sent the files of the app %s, for which this node did not ask", version)
            return
        try:
            if app is None:
                raise SecurityError("the server does not deliver it; start it with --deliver")
            self._app.store(app)
            log.info("the app %s has arrived, and its signature is right", version)
        except (SecurityError, OSError) as error:
            self._refused = str(error)
            log.error("the app %s is refused: %s", version, error)
        self._waiting = [ask for ask in self._waiting if ask.app != version]
        self._ready += ready

    def _client_app(self, version: str) -> ClientApp | None:
        """Return the app for a message; None if its files were refused. Raises what its modules raise."""
        return self._app.client_app(version) if isinstance(self._app, ReceivedApps) else self._app

    def _compare(self, grid: netq.Communicator, version: str) -> None:
        """Report once that the server's app has another version than this node's."""
        if version and self._version and version not in (self._version, self._reported):
            self._reported = version
            log.warning("the server's app has version %s, this node's %s; update one of them", version, self._version)
            grid.put(write_app(self._version))

    def _context(self, before: Context, ask: Ask) -> Context:
        """Return the context for a message: the same as before, or a new one in a new run."""
        if before.run_id == ask.run:
            return before
        return Context(ask.run, before.node_id, self._config, RecordDict(), dict(ask.run_config))

    def _answer(self, ask: Ask, context: Context) -> tuple[RecordDict | Error, Context]:
        """Run the app. Return its reply and the changed context; if it fails, an error and the context unchanged."""
        log.info("%s", _title(ask))
        changed = _copy_of(context)
        try:
            app = self._client_app(ask.app)
            if app is None:
                reason = f"this node refuses the app {ask.app}: {self._refused}"
                return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), context
            reply = app(_message(ask, context.node_id), changed)
            if not isinstance(reply, Message):
                raise TypeError(f"{app!r} returned a {type(reply).__name__}; expected a flwr.app.Message")
        except Exception as error:  # of the user's app: the grid gets it as the reply
            log.exception("node %d: the ClientApp failed", context.node_id)
            return Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>"), context  # Flower's form
        return (reply.error if reply.has_error() else reply.content), changed


def _title(ask: Ask) -> str:
    """Return a message's type and round for the log. A legacy app has the round as group, FedAvg in the config."""
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
    """Send a reply, and wait until the grid has it: the app may change its arrays when it handles the next message."""
    try:
        error = grid.put(write_reply(reply)).exception()
    except Exception as raised:  # serialising the user's values may raise anything
        error = raised
    if error is None or isinstance(error, netq.Closed):  # the next `get` raises it too
        return
    log.error("the reply cannot be sent: %s", error)
    reason = f"{type(error)}:<'its reply cannot be sent: {error}'>"
    _put(grid, Reply(reply.batch, Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)))
