"""The work queues of an exchange. Pure.

    push ──► waiting ──► given to a worker ──► done or failed: the producer gets the answer
                ▲               │
                └───────────────┘ the worker has ended

Each job is given to one worker. If that ends before the job is done, another worker gets it. The jobs of a producer
that has gone are kept for some time, and no one gets their answers.
"""

from __future__ import annotations

import itertools
import secrets
import uuid
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from netq.exchange.quota import Quota
from netq.utils.stream import Stream


@dataclass(eq=False, slots=True)
class Job:
    """A job.

    tries:      how many workers have got it, and have ended before it was done.
    is_awaited: whether its producer is still here.
    recall:     takes it back on its way to the worker; returns False if the worker may have got it.
    """

    number: int
    queue: str
    producer: uuid.UUID
    request: int  # the producer's number
    data: Stream
    tries: int = 0
    worker: uuid.UUID | None = None
    is_awaited: bool = True
    recall: Callable[[], bool] = lambda: False


class Counts(NamedTuple):
    """The figures of a queue."""

    waiting: int  # jobs that were not given to a worker
    given: int  # jobs that were given to a worker, and are not done
    workers: int  # that are connected


@dataclass(eq=False, slots=True)
class _Worker:
    """A client that works for a queue."""

    ahead: int  # jobs that it may have at once
    is_here: bool = True
    jobs: dict[int, Job] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Queue:
    waiting: OrderedDict[int, Job] = field(default_factory=OrderedDict)  # by number, the next one first
    workers: dict[uuid.UUID, _Worker] = field(default_factory=dict)
    free: OrderedDict[uuid.UUID, _Worker] = field(default_factory=OrderedDict)  # those with room; the first is next


class Jobs:
    """All work queues of an exchange. Methods that give jobs to workers return these jobs: the caller sends them.

    most, memory: jobs, and bytes of their data and their queue's name, that may wait or be worked on.
    tries:        workers that may end with a job before it fails.
    """

    def __init__(self, most: int, memory: int, tries: int) -> None:
        self._tries = tries
        self._numbers = itertools.count(secrets.randbits(62))  # answers to an earlier exchange must not fit
        self._queues: dict[str, _Queue] = {}
        self._works: dict[uuid.UUID, dict[str, None]] = {}  # the queues that each client works for
        self.workers = 0  # of all queues
        self._jobs = Quota[Job](most, memory, "jobs", ("jobs", "job_memory"))
        self.repeated = 0  # jobs that were waiting again, because the worker that had got them has ended

    def __len__(self) -> int:
        return len(self._jobs)

    def make_room(self, queue: str, producer: uuid.UUID, size: int) -> tuple[list[Job], list[Job]]:
        """Make room for a job of `size` bytes. Return the jobs that were dropped, and jobs to send. Raises Rejected."""
        lost = self._jobs.make_room(producer, size + len(queue))
        return lost, self._drop(lost)

    def push(self, queue: str, producer: uuid.UUID, request: int, data: Stream) -> list[Job]:
        """Add a job."""
        job = Job(next(self._numbers), queue, producer, request, data)
        self._jobs.add(job.number, producer, data.nbytes + len(queue), job)
        self._queues.setdefault(queue, _Queue()).waiting[job.number] = job
        return self._give(queue)

    def work(self, name: str, client: uuid.UUID, ahead: int) -> list[Job]:
        """Give a client up to `ahead` jobs at once, from now on; with 0, no more."""
        queue = self._queues.setdefault(name, _Queue())
        worker = queue.workers.setdefault(client, _Worker(0))
        works = self._works.setdefault(client, {})
        self.workers += name not in works
        works[name] = None
        worker.ahead, worker.is_here = ahead, True
        self._note_room(name, client, worker)
        return self._give(name)

    def finish(self, number: int, client: uuid.UUID) -> tuple[Job | None, list[Job]]:
        """Remove a job that a worker has done, or failed to do. Return it, and the jobs to send.

        Return None for a job that is not this worker's any more: another one has it, or has done it.
        """
        job = self._jobs.get(number)
        if job is None or job.worker != client:
            return None, []
        queue = self._queues[job.queue]
        worker = queue.workers[client]
        del worker.jobs[number]
        self._jobs.remove(number)
        self._note_room(job.queue, client, worker)
        return job, self._give(job.queue)

    def give_back(self, number: int, client: uuid.UUID) -> list[Job]:
        """Give a job of this worker to another one. That does not count as a try."""
        job = self._jobs.get(number)
        if job is None or job.worker != client:
            return []
        queue = self._queues[job.queue]
        worker = queue.workers[client]
        del worker.jobs[number]
        job.worker = None
        _put_first(queue, job)
        self._note_room(job.queue, client, worker)
        return self._give(job.queue)

    def leave(self, client: uuid.UUID, *, returns: bool) -> tuple[list[Job], list[Job]]:
        """Take all jobs from a worker that has ended. Return those that have failed, and those to send.

        returns: whether it may come back. Then it stays a worker, but gets no jobs until `come_back`.
        """
        failed, given = [], []
        for name in list(self._works.get(client, ())):
            queue = self._queues[name]
            worker = queue.workers[client]
            for job in reversed(worker.jobs.values()):
                has_got_it = not job.recall()
                job.worker, job.tries = None, job.tries + has_got_it
                if job.tries < self._tries:
                    self.repeated += has_got_it
                    _put_first(queue, job)
                else:
                    failed.append(job)
                    self._jobs.remove(job.number)
            worker.jobs.clear()
            worker.is_here = False
            if not returns:
                worker.ahead = 0
            self._note_room(name, client, worker)
            given += self._give(name)
        return failed, given

    def producer_leaves(self, client: uuid.UUID, now: float) -> None:
        """Note that a producer has gone, and gets no answers."""
        for job in self._jobs.leave(client, now):
            job.is_awaited = False

    def expire(self, before: float) -> tuple[int, list[Job]]:
        """Drop the jobs of producers that have gone before a time. Return their number, and the jobs to send."""
        lost = self._jobs.expired(before)
        return len(lost), self._drop(lost)

    def come_back(self, client: uuid.UUID) -> list[Job]:
        """Note that a worker has come back, and gets jobs again."""
        given = []
        for name in list(self._works.get(client, ())):
            given += self.work(name, client, self._queues[name].workers[client].ahead)
        return given

    def counts(self) -> dict[str, Counts]:
        """Return the figures of each queue that has jobs or workers."""
        return {
            name: Counts(
                len(queue.waiting),
                sum(len(worker.jobs) for worker in queue.workers.values()),
                sum(worker.is_here for worker in queue.workers.values()),
            )
            for name, queue in self._queues.items()
        }

    def queues_of(self, client: uuid.UUID) -> Collection[str]:
        """Return the queues that a client works for."""
        return self._works.get(client, {})

    def _give(self, name: str) -> list[Job]:
        """Give waiting jobs to workers with room, in turn."""
        queue = self._queues[name]
        given = []
        while queue.waiting and queue.free:
            client, worker = next(iter(queue.free.items()))
            _, job = queue.waiting.popitem(last=False)
            job.worker = client
            worker.jobs[job.number] = job
            queue.free.move_to_end(client)
            self._note_room(name, client, worker)
            given.append(job)
        if not queue.waiting and not queue.workers:
            del self._queues[name]
        return given

    def _drop(self, jobs: Iterable[Job]) -> list[Job]:
        """Remove jobs, also those that workers have. Return the jobs to send."""
        names = dict[str, None]()
        for job in jobs:
            self._jobs.remove(job.number)
            names[job.queue] = None
            queue = self._queues[job.queue]
            queue.waiting.pop(job.number, None)
            if job.worker is not None:
                worker = queue.workers[job.worker]
                del worker.jobs[job.number]
                self._note_room(job.queue, job.worker, worker)
        return [job for name in names for job in self._give(name)]

    def _note_room(self, name: str, client: uuid.UUID, worker: _Worker) -> None:
        """Note whether a worker has room. Forget a worker that has ended its work, and has no jobs."""
        queue = self._queues[name]
        if worker.is_here and len(worker.jobs) < worker.ahead:
            queue.free.setdefault(client, worker)
        else:
            queue.free.pop(client, None)
            if not worker.ahead and not worker.jobs:
                queue.workers.pop(client, None)
                if name in self._works[client]:
                    del self._works[client][name]
                    self.workers -= 1
                if not self._works[client]:
                    del self._works[client]


def _put_first(queue: _Queue, job: Job) -> None:
    queue.waiting[job.number] = job
    queue.waiting.move_to_end(job.number, last=False)
