"""Work queues: each job is given to one worker, and to another one if that ends before it is done. Pure.

push ─► waiting ─► given to a worker ─► done or failed: the producer is told
           ▲              │
           └──────────────┘ the worker has ended
"""

from __future__ import annotations

import itertools
import secrets
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from netq.utils.stream import Stream


@dataclass(eq=False, slots=True)
class Job:
    """A job.

    tries:  how many workers have got it, and have ended before it was done.
    recall: takes it back from its worker; returns whether that has not got it, and will not.
    """

    number: int
    queue: str
    producer: uuid.UUID
    request: int  # the producer's number
    data: Stream
    tries: int = 0
    worker: uuid.UUID | None = None
    recall: Callable[[], bool] = lambda: False


class Counts(NamedTuple):
    """The figures of a queue."""

    waiting: int  # jobs that no worker has
    given: int  # jobs that a worker has, and has not done
    workers: int  # that are connected


@dataclass(eq=False, slots=True)
class _Worker:
    """A client that works for a queue."""

    ahead: int  # jobs that it may have at once
    is_here: bool = True
    jobs: dict[int, Job] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class _Queue:
    waiting: deque[Job] = field(default_factory=deque)
    workers: dict[uuid.UUID, _Worker] = field(default_factory=dict)
    free: OrderedDict[uuid.UUID, _Worker] = field(default_factory=OrderedDict)  # those with room; the first is next


class Jobs:
    """All work queues of an exchange. Methods that return jobs return those that are to be sent to their workers.

    most, memory: jobs, and bytes of their data, that may wait or be worked on.
    tries:        workers that may end with a job; then it has failed.
    """

    def __init__(self, most: int, memory: int, tries: int) -> None:
        self._most = most
        self._memory = memory
        self._tries = tries
        self._numbers = itertools.count(secrets.randbits(62))  # answers to an earlier exchange must not fit
        self._queues: dict[str, _Queue] = {}
        self._works: dict[uuid.UUID, dict[str, None]] = {}  # by client: the queues that have it as a worker
        self._jobs: dict[int, Job] = {}  # all that are not done
        self._size = 0  # bytes of their data
        self.repeated = 0  # times that a job was taken from a worker that had got it, and has ended

    def why_full(self, size: int) -> str:
        """Return why a job with `size` bytes is not taken; "" if it is."""
        if len(self._jobs) >= self._most:
            return f"{self._most} jobs wait already (jobs)"
        if self._jobs and self._size + size > self._memory:
            return f"with its {size} bytes, jobs would have more than {self._memory} (job_memory)"
        return ""

    def push(self, queue: str, producer: uuid.UUID, request: int, data: Stream) -> list[Job]:
        """Add a job."""
        job = Job(next(self._numbers), queue, producer, request, data)
        self._jobs[job.number] = job
        self._size += data.nbytes
        self._queues.setdefault(queue, _Queue()).waiting.append(job)
        return self._give(queue)

    def work(self, name: str, client: uuid.UUID, ahead: int) -> list[Job]:
        """Give a client up to `ahead` jobs at once, from now on; with 0, no more."""
        queue = self._queues.setdefault(name, _Queue())
        worker = queue.workers.setdefault(client, _Worker(0))
        self._works.setdefault(client, {})[name] = None
        worker.ahead, worker.is_here = ahead, True
        self._note_room(name, client, worker)
        return self._give(name)

    def finish(self, number: int, client: uuid.UUID) -> tuple[Job | None, list[Job]]:
        """Remove a job that a worker has done, or that it has failed to do. Return it, and those to be sent.

        None: the job is not this worker's any more: another one has it, or has done it.
        """
        job = self._jobs.get(number)
        if job is None or job.worker != client:
            return None, []
        queue = self._queues[job.queue]
        worker = queue.workers[client]
        del worker.jobs[number]
        self._forget(job)
        self._note_room(job.queue, client, worker)
        return job, self._give(job.queue)

    def give_back(self, number: int, client: uuid.UUID) -> list[Job]:
        """Let another worker do a job; this one does not count as ended."""
        job = self._jobs.get(number)
        if job is None or job.worker != client:
            return []
        queue = self._queues[job.queue]
        worker = queue.workers[client]
        del worker.jobs[number]
        job.worker = None
        queue.waiting.appendleft(job)
        self._note_room(job.queue, client, worker)
        return self._give(job.queue)

    def leave(self, client: uuid.UUID, *, returns: bool) -> tuple[list[Job], list[Job]]:
        """Take all jobs from a worker that has ended. Return those that have failed by it, and those to be sent.

        returns: whether it may come back, and work again.
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
                    queue.waiting.appendleft(job)
                else:
                    failed.append(job)
                    self._forget(job)
            worker.jobs.clear()
            worker.is_here = False
            if not returns:
                worker.ahead = 0
            self._note_room(name, client, worker)
            given += self._give(name)
        return failed, given

    def come_back(self, client: uuid.UUID) -> list[Job]:
        """Give jobs again to a worker that may come back, and has."""
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
            job = queue.waiting.popleft()
            job.worker = client
            worker.jobs[job.number] = job
            queue.free.move_to_end(client)
            self._note_room(name, client, worker)
            given.append(job)
        if not queue.waiting and not queue.workers:
            del self._queues[name]
        return given

    def _note_room(self, name: str, client: uuid.UUID, worker: _Worker) -> None:
        """Note whether a worker has room. Forget one that wants no jobs and has none."""
        queue = self._queues[name]
        if worker.is_here and len(worker.jobs) < worker.ahead:
            queue.free.setdefault(client, worker)
        else:
            queue.free.pop(client, None)
            if not worker.ahead and not worker.jobs:
                queue.workers.pop(client, None)
                self._works[client].pop(name, None)
                if not self._works[client]:
                    del self._works[client]

    def _forget(self, job: Job) -> None:
        del self._jobs[job.number]
        self._size -= job.data.nbytes
