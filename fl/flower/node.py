"""A node: runs an unmodified Flower ClientApp for a grid (fl/flower/grid.py), in the caller's thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import netq
from fl.conversation import Conversation, KnownServer
from fl.envelope import Finished
from fl.errors import InvalidUpdate
from fl.flower import masked
from fl.flower.apps import ClientApp, check_client_app
from fl.flower.envelope import Ask, Files
from fl.flower.inbox import Inbox
from fl.flower.messages import WITH_VALUES, check_config, node_id
from fl.flower.node_tasks import NodeTasks
from fl.flower.signed_app import ReceivedApps
from fl.membership import Membership, take_part
from fl.messages import Answered
from fl.secure.masker import Masker
from fl.secure.options import SecurePolicy
from fl.secure.participant import Masking
from netq.errors import SecurityError, Unreadable
from netq.validate import expect

log = logging.getLogger("netq.fl")


class Node:
    """Runs a ClientApp for each message of a grid.

    client_app:  an unmodified flwr.clientapp.ClientApp, with the message API or a `client_fn`; or a function of
                 (message, context). ReceivedApps: the server's app, whose files the server delivers.
    node_config: the app's `context.node_config`, as in {"partition-id": 0, "num-partitions": 2}.
    app_version: AppFolder.version of the app's folder. If that of the server's app is another, both sides log it.
    copy:        whether `numpy()` of an array in a message returns a new copy each time, as in Flower. False: it
                 returns the message's own memory, for apps that do not change an array and then ask for it again.
    secure:      what this node wants of secure aggregation (fl.SecurePolicy). None: what the server says.

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
        secure: SecurePolicy | None = None,
    ) -> None:
        if not isinstance(client_app, ReceivedApps):
            check_client_app("Node.client_app", client_app)
        self._app = client_app
        self._config = dict(node_config or {})
        check_config(self._config)
        self._version = app_version
        self._copy = copy
        form = "an object, as in fl.SecurePolicy(required=True)"
        expect(isinstance(secure, SecurePolicy | None), "Node.secure", secure, form)
        self._policy = secure or SecurePolicy()
        none = "none: the messages of a grid have masks, and no homomorphic encryption"
        expect(not self._policy.key, "Node.secure.key", self._policy.key, none)

    def run(self, options: netq.CommunicatorOptions | None = None, protocol: netq.Protocol = netq.Protocol.TCP) -> None:
        """Take part until its grid ends the run. Waits for a grid that is absent, or lost.

        Its grid is the one to which it connects first, and later the one that has sent it a message last. The options'
        serialisation is replaced by that of the grid's messages. Raises what netq.new raises.
        """
        options = replace(options or netq.CommunicatorOptions(), serialization=WITH_VALUES)
        has = self._app.has if isinstance(self._app, ReceivedApps) else None
        tasks: NodeTasks | None = None  # outlives a session that ends before the run
        link, masker = KnownServer(), Masker(self._policy, options)

        def serve(grid: netq.Communicator, membership: Membership) -> None:
            nonlocal tasks
            tasks = tasks or NodeTasks(self._app, node_id(grid.id), self._config, copy=self._copy)
            inbox = Inbox(grid, self._version, has, options.connection.memory)
            conversation = Conversation(grid, membership, link, inbox=inbox)
            masker.is_client(grid.id)
            while (task := conversation.next_task()) is not None:
                delivery = conversation.reply(task, self._answer(task, tasks, masker))
                if delivery is not None:  # the app may change its arrays when it handles the next message
                    delivery.exception()
                del task, delivery  # free their memory before the next message arrives

        take_part(options, protocol, "run", serve)

    def _answer(self, task: Ask | Files, tasks: NodeTasks, masker: Masker) -> Finished | str:
        """Reply to a message, under masks if the grid wants them. Return the reply as bytes, or why there is none."""
        try:
            if task.job is None:
                return tasks.answer(task)
            if not task.is_secure:
                self._policy.check_unmasked()
                return tasks.answer(task)
            begun = masker.begin(masked.task_of(masked.load(task.stream) if task.values is None else task.values))
            if isinstance(begun, Answered):
                return masked.finished(task.job, begun)
            assert isinstance(begun, Masking)
            answer = tasks.answer(task)
            update = answer if isinstance(answer, str) else masked.update_of(masked.load(answer.message), begun.start)
            return update if isinstance(update, str) else masked.finished(task.job, begun.mask(update))
        except (InvalidUpdate, SecurityError, Unreadable, ImportError) as error:
            log.log(logging.INFO if task.is_step else logging.ERROR, "%s: not done: %s", task.title, error)
            return str(error)
