"""The client: waits for tasks, does them and replies, in the caller's thread, until its federation is over.

docs/reference/fl.md, "The end of a federation", says which server's end is the end of `Client.run`.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import netq
from fl.compression.compressor import Compression
from fl.conversation import Conversation
from fl.errors import describe
from fl.membership import Membership, take_part
from fl.messages import MESSAGES, Job, Reply, Report, Update
from fl.outline import OUTLINES, Task
from fl.trainer import Evaluate, Train, Trainer
from netq.validate import expect

log = logging.getLogger("netq.fl")


class Client:
    """Trains a model when a server asks for it.

    train(model, config) -> Update: `model` is a dict of arrays or tensors, which the function may change. `config` has
        "round" (1, 2, …) and the values of the server and its strategy. An exception is reported to the server, which
        leaves this client out of the round; the client goes on.
    evaluate(model, config) -> Report: the same for a server that evaluates its models. Optional.
    compression: how updates are packed (fl.Compression, or its text); None: as the server's strategy says. Packing
        takes the memory of two more models: the model before training, and the changes that were not sent.
    seed: of the random rounding in packing; None: the system's.
    """

    def __init__(
        self,
        train: Train,
        evaluate: Evaluate | None = None,
        compression: Compression | str | None = None,
        seed: int | None = None,
    ) -> None:
        self.trainer = Trainer(train, evaluate, compression, seed)

    def run(self, options: netq.CommunicatorOptions | None = None, protocol: netq.Protocol = netq.Protocol.TCP) -> None:
        """Take part until a server of this client's federation ends it. Waits for a server that is absent, or lost.

        The options' serialisation is replaced by that of the federation's messages.
        """
        known = isinstance(options, netq.CommunicatorOptions | None)
        expect(known, "Client.run: options", options, "a netq.CommunicatorOptions")
        options = replace(options or netq.CommunicatorOptions(), serialization=OUTLINES)
        take_part(options, protocol, "federation", self._serve)

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """Do the tasks of a session."""
        conversation = Conversation(queue, membership)
        while (task := conversation.next_task()) is not None:
            log.info("round %d: %s", *task.job[1:])
            content = self._do(task)
            try:
                message = MESSAGES.dump(Reply(Job(*task.job), content))
            except Exception as error:  # pickling the user's values may raise anything
                log.exception("an answer cannot be pickled")
                conversation.fail(task, f"its answer cannot be pickled: {describe(error)}")
            else:
                conversation.reply(task, message, content.nbytes if isinstance(content, Update) else 0)
            del task, content  # free their memory before the next task arrives

    def _do(self, task: Task) -> Update | Report | str:
        try:
            return self.trainer.do(MESSAGES.load(task.stream))
        except netq.Unreadable as error:
            log.error("round %d: the task cannot be read: %s", task.job[1], error)
            return f"the task cannot be read: {error}"
