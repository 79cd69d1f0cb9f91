"""The client: waits for tasks, does them and replies, in the caller's thread, until its federation is over.

docs/reference/fl.md, "The end of a federation", says which server's end is the end of `Client.run`.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from dataclasses import replace

import netq
from fl.compression.compressor import Compression
from fl.errors import describe
from fl.membership import Membership, take_part
from fl.messages import MESSAGES, End, Job, Offer, Permit, Reply, Report, Task, Update
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
        options = replace(options or netq.CommunicatorOptions(), serialization=MESSAGES)
        take_part(options, protocol, "federation", self._serve)

    def _serve(self, queue: netq.Communicator, membership: Membership) -> None:
        """Do the tasks of a session."""
        server = _Server(queue, membership)
        while (task := server.next_task()) is not None:
            log.info("round %d: %s", task.job.round, task.job.purpose)
            server.reply(task.job, self.trainer.do(task), task.unasked)
            del task  # free its memory before the next task arrives


class _Server:
    """The client's conversation with the server: a task, a reply, a task, …"""

    def __init__(self, queue: netq.Communicator, membership: Membership) -> None:
        self._queue = queue
        self._membership = membership
        self._offered: Reply | None = None  # waits for a permit

    def next_task(self) -> Task | None:
        """Wait for a task, and return it. Return None when the federation, or the session, is over.

        Sends the offered reply when its permit comes. If several tasks wait, returns the newest: the rounds of the
        others are over, and so is the round of an offered reply.
        """
        task, timeout = None, None
        while True:
            try:
                peer, message = self._queue.get(timeout=timeout)
            except TimeoutError:
                return task
            except netq.Closed as error:
                self._membership.session_ended(error)
                return None
            except netq.Unreadable as error:
                log.error("a message of the server cannot be read, and is left out: %s", error)
                continue
            if isinstance(message, Task):
                self._membership.asked(peer)
                self._offered = None
                task, timeout = message, 0.0
            elif isinstance(message, End):
                if self._membership.ended(peer):
                    log.info("round %d was the last one: the server has ended the federation", message.round)
                    return None
            elif isinstance(message, Permit):
                self._permitted(message.job)
            else:
                log.error("the server sent a %s where a Task was expected; it is left out", type(message).__name__)

    def reply(self, job: Job, content: Update | Report | str, unasked: int) -> None:
        """Send the reply to a task. Offer a large one first, and keep it until there is a permit."""
        size = content.nbytes if isinstance(content, Update) else 0
        if size > unasked:
            self._offered = Reply(job, content)
            self._queue.put(Offer(job, size))
        else:
            self._put(Reply(job, content))

    def _permitted(self, job: Job) -> None:
        reply, self._offered = self._offered, None
        if reply is not None and reply.job == job:
            self._put(reply)

    def _put(self, reply: Reply) -> None:
        """Send a reply. If it cannot be sent, send the reason instead."""

        def check(delivery: Future[None]) -> None:
            if isinstance(error := delivery.exception(), netq.MessageTooLarge):
                self._queue.put(Reply(job, f"its answer cannot be sent: {error}"))

        job = reply.job  # `check` lives as long as the delivery, and must not keep the large reply
        try:
            delivery = self._queue.put(reply)
        except Exception as error:  # pickling the user's values may raise anything
            log.exception("an answer cannot be pickled")
            self._queue.put(Reply(job, f"its answer cannot be pickled: {describe(error)}"))
        else:
            delivery.add_done_callback(check)
