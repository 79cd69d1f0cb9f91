"""The client: waits for tasks, does them and replies, in the caller's thread, until its federation is over.

docs/reference/fl.md, "The end of a federation", says which server's end is the end of `Client.run`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import netq
from fl.compression.compressor import Compression
from fl.conversation import Conversation, KnownServer
from fl.envelope import Final, Introduction
from fl.membership import Membership, checked_addresses, take_part
from fl.messages import MESSAGES, WITH_VALUES
from fl.properties import Properties, checked, checked_name
from fl.secure.masker import Masker
from fl.secure.options import SecurePolicy
from fl.trainer import Columns, Evaluate, Train, Trainer
from netq.validate import expect, flag

log = logging.getLogger("netq.fl")


class Client:
    """Trains a model when a server asks for it.

    train(model, config) -> Update: `model` is a dict of arrays or tensors, which the function may change. `config` has
        "round" (1, 2, …), "state" (a dict that lasts from round to round), and the values of the server and its
        strategy. An exception is reported to the server, which leaves this client out of the round; the client goes on.
    evaluate(model, config) -> Report: the same for a server that evaluates its models. Optional.
    compression: how updates are packed (fl.Compression, or its text); None: as the server's strategy says; "auto": by
        the measured rate of the link (fl/compression/auto.py). Packing takes the memory of two more models: the model
        before training, and the changes that were not sent.
    seed: of the random rounding in packing; None: the system's.
    properties: what the server and its strategy may choose by: numbers, texts, True or False by name, 64 at most.
    final_model: whether `run` returns the federation's last model, which the server sends at the end.
    name: what logs and reports call this client besides its id. The common name of its certificate is stronger.
    secure: what this client wants of secure aggregation (fl.SecurePolicy). None: what the server says.
    columns(config) -> dict: this client's data, as arrays of one dimension by name, for a server that asks for
        statistics. They stay here: the server gets sums and counts. config["columns"] has the names that it asks for.
        None: it gives no statistics.
    min_count: a column with fewer values is withheld from the server, and a smaller number of values is given as 0.
    """

    def __init__(
        self,
        train: Train,
        evaluate: Evaluate | None = None,
        compression: Compression | str | None = None,
        seed: int | None = None,
        properties: Properties | None = None,
        final_model: bool = True,
        name: str = "",
        secure: SecurePolicy | None = None,
        columns: Columns | None = None,
        min_count: int = 10,
    ) -> None:
        flag("Client.final_model", final_model)
        self.final_model = final_model
        self._name = checked_name(name, "Client.name")
        self.properties = checked({} if properties is None else properties, "Client.properties")
        form = "an object, as in fl.SecurePolicy(required=True)"
        expect(isinstance(secure, SecurePolicy | None), "Client.secure", secure, form)
        self._policy = secure or SecurePolicy()
        self.trainer = Trainer(train, evaluate, compression, seed, columns, min_count)
        self._link = KnownServer()

    def run(
        self,
        options: netq.CommunicatorOptions | None = None,
        protocol: netq.Protocol = netq.Protocol.TCP,
        *,
        fallback: Sequence[tuple[str, int]] = (),
    ) -> dict[str, Any] | None:
        """Take part until a server of this client's federation ends it. Waits for a server that is absent, or lost.

        Returns the last model, with the local tensors of this client; None if the server has sent none.

        fallback: further addresses of servers or relays of the federation, each a host and a port. One that has no
                  connection for 10 seconds is given up for the next; after the last comes the first again.

        The options' serialisation is replaced by that of the federation's messages.
        """
        known = isinstance(options, netq.CommunicatorOptions | None)
        expect(known, "Client.run: options", options, "a netq.CommunicatorOptions")
        options = replace(options or netq.CommunicatorOptions(), serialization=WITH_VALUES)
        self._final: Final | None = None
        self._masker = Masker(self._policy, options)
        self._masker.check()
        take_part(options, protocol, "federation", self._serve, fallback=checked_addresses(fallback, "Client.run"))
        if self._final is None:
            return None
        return {**self._masker.opened(MESSAGES.load(self._final.stream).model), **self.trainer.local}

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """Do the tasks of a session."""
        introduction = Introduction(self.properties, self.final_model, self._name)
        conversation = Conversation(queue, membership, self._link, introduction)
        self._masker.is_client(queue.id)
        while (task := conversation.next_task()) is not None:
            answer = self.trainer.answer(task, self._link.rate, self._masker)
            if isinstance(answer, str):
                log.warning("%s: the server is told, and gives this client its next task", task.title)
            conversation.reply(task, answer)
            del task, answer  # free their memory before the next task arrives
        self._final = conversation.final
