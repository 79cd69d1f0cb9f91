"""Work queues: a state machine compared with a simple model, and single cases."""

from __future__ import annotations

import re
import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from netq.exchange.envelope import Rejected
from netq.exchange.jobs import Counts, Job, Jobs
from netq.utils.stream import Stream

WORKERS = [uuid.UUID(int=number) for number in range(1, 5)]
PRODUCER = uuid.UUID(int=9)
QUEUES = ["a", "b"]
TRIES = 3


def jobs(most: int = 1000, memory: int = 10**6, tries: int = TRIES) -> Jobs:
    return Jobs(most, memory, tries)


class Machine(RuleBasedStateMachine):
    """All that may happen. A job is at one place: waiting, at one worker, or over."""

    held: Bundle[int] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.jobs = jobs()
        self.ahead = {(worker, queue): 0 for worker in WORKERS for queue in QUEUES}
        self.here = set(WORKERS)
        self.at: dict[int, uuid.UUID] = {}  # where each given job is
        self.open: dict[int, Job] = {}
        self.requests = 0

    def given(self, found: list[Job]) -> None:
        for job in found:
            assert job.worker in self.here
            assert job.number not in self.at
            self.open[job.number] = job
            assert job.worker is not None
            self.at[job.number] = job.worker
            assert self.load(job.worker, job.queue) <= self.ahead[job.worker, job.queue]

    def load(self, worker: uuid.UUID, queue: str) -> int:
        return sum(at == worker and self.open[number].queue == queue for number, at in self.at.items())

    @rule(target=held, queue=st.sampled_from(QUEUES), size=st.integers(0, 10))
    def push(self, queue: str, size: int):  # type: ignore[no-untyped-def]
        self.requests += 1
        before = set(self.jobs._jobs._at)
        self.given(self.jobs.push(queue, PRODUCER, self.requests, Stream([bytes(size)])))
        (number,) = self.jobs._jobs._at.keys() - before
        job = self.jobs._jobs.get(number)
        assert job is not None
        self.open[number] = job
        return self.open[number].number

    @rule(worker=st.sampled_from(WORKERS), queue=st.sampled_from(QUEUES), ahead=st.integers(0, 3))
    def work(self, worker: uuid.UUID, queue: str, ahead: int) -> None:
        if worker in self.here:
            self.ahead[worker, queue] = ahead
            self.given(self.jobs.work(queue, worker, ahead))

    @rule(number=held, worker=st.sampled_from(WORKERS))
    def finish(self, number: int, worker: uuid.UUID) -> None:
        job, found = self.jobs.finish(number, worker)
        if self.at.get(number) == worker:
            assert job is not None
            assert job.number == number
            del self.at[number], self.open[number]
        else:
            assert job is None
        self.given(found)

    @rule(number=held)
    def give_back(self, number: int) -> None:
        if (worker := self.at.pop(number, None)) is not None:
            self.given(self.jobs.give_back(number, worker))

    @rule(worker=st.sampled_from(WORKERS), returns=st.booleans())
    def leave(self, worker: uuid.UUID, returns: bool) -> None:
        lost = {number for number, at in self.at.items() if at == worker}
        failing = {number for number in lost if self.open[number].tries == TRIES - 1}
        for number in lost:
            del self.at[number]
        if returns:
            self.here.discard(worker)
        else:
            self.here.add(worker)  # another process with this id may come
            for queue in QUEUES:
                self.ahead[worker, queue] = 0
        failed, found = self.jobs.leave(worker, returns=returns)
        assert {job.number for job in failed} == failing
        for number in failing:
            del self.open[number]
        self.given(found)

    @rule(worker=st.sampled_from(WORKERS))
    def come_back(self, worker: uuid.UUID) -> None:
        if worker not in self.here:
            self.here.add(worker)
            self.given(self.jobs.come_back(worker))

    @invariant()
    def nothing_is_lost_or_late(self) -> None:
        held = self.jobs._jobs
        assert held._at.keys() == self.open.keys()
        assert held._size == sum(job.data.nbytes + 1 for job in self.open.values())
        counts = self.jobs.counts()
        for queue in QUEUES:
            waiting = sum(job.queue == queue and number not in self.at for number, job in self.open.items())
            given = sum(job.queue == queue and number in self.at for number, job in self.open.items())
            found = counts.get(queue, Counts(0, 0, 0))
            assert (found.waiting, found.given) == (waiting, given)
            free = [each for each in self.here if self.load(each, queue) < self.ahead[each, queue]]
            assert not (waiting and free)


TestJobs = Machine.TestCase
TestJobs.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_queue_without_jobs_and_workers_is_forgotten() -> None:
    found = jobs()
    found.work("a", WORKERS[0], 1)
    (job,) = found.push("a", PRODUCER, 1, Stream())
    found.work("a", WORKERS[0], 0)
    assert found.counts() == {"a": Counts(0, 1, 1)}
    found.finish(job.number, WORKERS[0])
    assert found.counts() == {}


def test_jobs_are_given_in_order_and_workers_in_turn() -> None:
    found = jobs()
    for number in range(4):
        assert found.push("a", PRODUCER, number, Stream()) == []
    first = found.work("a", WORKERS[0], 2)
    second = found.work("a", WORKERS[1], 2)
    assert [job.request for job in (*first, *second)] == [0, 1, 2, 3]
    failed, again = found.leave(WORKERS[0], returns=False)
    assert (failed, again) == ([], [])
    assert [(job.request, job.tries) for job in found.work("a", WORKERS[2], 9)] == [(0, 1), (1, 1)]
    assert found.repeated == 2


def test_limits_are_named() -> None:
    found = jobs(most=2, memory=12)
    assert found.make_room("a", PRODUCER, 11) == ([], [])  # one is taken, however large: else it could never be
    found.push("a", PRODUCER, 1, Stream([bytes(6)]))
    assert found.make_room("a", PRODUCER, 4) == ([], [])
    again = "of them; ask again when there is room"
    full = f"7 of 12 bytes of jobs (job_memory) are taken, and this client has 7 {again}"
    with pytest.raises(Rejected, match=re.escape(full)):
        found.make_room("a", PRODUCER, 5)
    found.push("a", PRODUCER, 2, Stream())
    full = f"2 of 2 jobs (jobs) are taken, and this client has 2 {again}"
    with pytest.raises(Rejected, match=re.escape(full)):
        found.make_room("a", PRODUCER, 0)


def test_jobs_of_a_producer_that_has_gone_are_kept_for_a_time() -> None:
    found = jobs(most=100)
    for number in range(10):
        found.push("a", PRODUCER, number, Stream([b"x"]))
    (given,) = found.work("a", WORKERS[0], 1)
    found.producer_leaves(PRODUCER, 5.0)
    assert not given.is_awaited
    assert found.expire(5.0) == (0, [])
    job, _ = found.finish(given.number, WORKERS[0])
    assert job is given
    found.push("a", WORKERS[3], 1, Stream())
    dropped, (given,) = found.expire(6.0)
    assert (dropped, given.producer) == (9, WORKERS[3])
    assert found.finish(given.number, WORKERS[0]) == (given, [])
    assert found.counts() == {"a": Counts(0, 0, 1)}
    assert (len(found._jobs), found._jobs._size) == (0, 0)


def fill(found: Jobs, producer: uuid.UUID, size: int) -> int:
    """Push all that is taken; return how many."""
    for count in range(10_000):
        try:
            found.make_room("a", producer, size)
        except Rejected:
            return count
        found.push("a", producer, 1, Stream([bytes(size)]))
    raise AssertionError("there is no bound")


@pytest.mark.parametrize("size", [0, 1999])
@pytest.mark.parametrize("goes", [False, True])
def test_no_crowd_of_producers_keeps_another_from_its_part(size: int, goes: bool) -> None:
    found = jobs(most=1000, memory=2_000_000)
    for producer in (uuid.UUID(int=number) for number in range(100, 120)):
        fill(found, producer, size)
        if goes:
            found.producer_leaves(producer, 0.0)
    assert len(found._jobs) <= 1000
    for _ in range(20):
        lost, _ = found.make_room("a", PRODUCER, size)
        assert {job.is_awaited for job in lost} <= {not goes}
        found.push("a", PRODUCER, 1, Stream([bytes(size)]))
    assert sum(job.producer == PRODUCER for job in found._queues["a"].waiting.values()) == 20
    found.expire(1.0)
    assert found.counts()["a"].waiting == (20 if goes else len(found._jobs))


def test_many_producers_that_have_gone_are_kept_together() -> None:
    found = jobs(most=10_000)
    for number in range(3000):
        found.push("a", uuid.UUID(int=number), 1, Stream())
        found.producer_leaves(uuid.UUID(int=number), 0.0)
    assert len(found._jobs._gone) == 1000
    assert found.expire(1.0) == (3000, [])
    assert (found.counts(), len(found._jobs), found._jobs._size) == ({}, 0, 0)


def test_job_that_has_not_reached_its_worker_is_no_try() -> None:
    found = jobs(tries=1)
    first, second = WORKERS[:2]
    found.work("a", first, 1)
    (job,) = found.push("a", PRODUCER, 1, Stream([b"x"]))
    job.recall = lambda: True
    assert found.leave(first, returns=False) == ([], [])
    assert found.work("a", second, 1) == [job]
    assert (job.tries, found.repeated) == (0, 0)
    job.recall = lambda: False
    assert found.leave(second, returns=False) == ([job], [])


def test_queues_of_a_worker_are_known() -> None:
    found = jobs()
    for name in ("a", "b", "c"):
        found.work(name, WORKERS[0], 1)
    found.work("b", WORKERS[0], 0)
    assert list(found.queues_of(WORKERS[0])) == ["a", "c"]
    found.leave(WORKERS[0], returns=False)
    assert list(found.queues_of(WORKERS[0])) == []
