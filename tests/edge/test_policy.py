"""The policy of a device: what a training may not send, in many ways, and what its agent sends in place of it."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
import fl
import netq
from edge import noising, record
from edge.approvals import Source
from edge.audit import verify
from edge.budget import Budget
from edge.guard import Guard
from edge.outgoing import Allowed, of_federation, of_flower
from edge.policy import Policy
from edge.work import federation as federation_work
from edge.worker import Done, Order, receive_answer, send
from fl import envelope
from fl.envelope import Job
from fl.errors import InvalidUpdate
from fl.flower.envelope import Ask
from fl.messages import MESSAGES, Answered, Reply, Skip, Task
from fl.privacy.accountant import Ledger, Noise
from fl.tensors.json_format import JsonSerializer
from fl.trainer import Trainer
from netq.errors import InvalidOption, NotNow, Unreadable
from netq.utils.stream import Stream
from tests.edge.test_agent import ID, SOON, config, running
from tests.edge.test_agent import server as federation
from tests.edge.test_config import SERVER, refusal, run_edge, write
from tests.edge.test_restart import Server, agent, server, until_exists
from tests.pages import Page

__all__ = ["server"]

ONLY = '[policy]\ntensors = ["w"]\nmetrics = ["loss"]\naudit = "audit.jsonl"\n'
NOISE = "[policy]\nclip = 1.0\nnoise_multiplier = 1.0\n"
FAILED = "the training has failed; its reason stays in the log of the device, as the device's policy says"
REFUSED = "the policy of this device withholds {} (see policy.tensors): train without, or ask its owner"


def audited(folder: Path) -> list[dict[str, Any]]:
    path = folder / "audit.jsonl"
    assert verify(path)[0]
    return [json.loads(line) for line in path.read_text().splitlines()]


def answered(server: Server, folder: Path, how: str, policy: str = ONLY) -> Any:
    """Return the content of the reply of a training that sends what it may not."""
    with agent(server, folder, f'how = "{how}"\n{policy}', train="smuggles"):
        server.sessions.get(timeout=SOON)
        reply = server.ask(1)
    assert isinstance(reply, Reply)
    return reply.content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "told", "name"),
    [
        ("tensor", REFUSED.format("what the task does not have"), "body"),
        ("extra", REFUSED.format("what the task does not have"), "extra.w"),
        ("metrics", REFUSED.format("what the task does not have"), "loss"),
        ("failure", FAILED, None),
        ("status", FAILED, None),
        (
            "record",
            "the training skips it; its reason stays in the log of the device, as the device's policy says",
            None,
        ),
    ],
)
def test_what_may_not_leave_is_withheld(server: Server, tmp_path: Path, how: str, told: str, name: str | None) -> None:
    content = answered(server, tmp_path, how)
    assert content == (Skip(told) if how == "record" else told) or str(content) == told
    assert not (tmp_path / "state" / "record").exists() or how == "record"
    (line,) = audited(tmp_path)
    assert line.get("names") == (None if name is None else [name])
    assert ("secret is 42" in line["why"]) if how == "failure" else True


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "numbers"])
def test_numbers_that_may_not_leave_are_left_out_and_the_server_is_told(
    server: Server, tmp_path: Path, how: str
) -> None:
    update = answered(server, tmp_path, how)
    assert update.metrics == {"loss": 0.5, "policy.withheld": 1.0}
    assert update.model["w"].tolist() == [1, 1, 1]
    (line,) = audited(tmp_path)
    assert (line["what"], line["tensors"], line["metrics"]) == ("sent", ["w"], ["loss"])
    assert {"accuracy" if how == "" else "x40.0", "usage.cpu_seconds"} <= {*line["withheld"]}


@pytest.mark.slow
def test_a_text_of_a_skip_stays(server: Server, tmp_path: Path) -> None:
    assert "42" not in str(answered(server, tmp_path, "skip"))
    assert audited(tmp_path)[0]["said"] == "the secret is 42"


@pytest.mark.slow
def test_a_policy_that_forbids_all_says_what_to_do(server: Server, tmp_path: Path) -> None:
    nothing = ONLY.replace('["w"]', "[]").replace('["loss"]', "[]")
    assert answered(server, tmp_path, "", nothing) == REFUSED.format("'w'")
    assert audited(tmp_path)[0]["names"] == ["w"]


@pytest.mark.slow
def test_noise_is_added_once_and_sent_again_after_a_kill(server: Server, tmp_path: Path) -> None:
    policy = NOISE + 'audit = "audit.jsonl"\n'
    with agent(server, tmp_path, policy):
        server.sessions.get(timeout=SOON)
        first = server.update(1)
        until_exists(tmp_path / "state" / "record")
    with agent(server, tmp_path, policy):
        server.sessions.get(timeout=SOON)
        again, second = server.update(1), server.update(2)
    assert again.model["w"].tobytes() == first.model["w"].tobytes() != second.model["w"].tobytes()
    assert not np.array_equal(first.model["w"], [1, 1, 1])
    assert first.metrics == {"policy.withheld": 1.0}
    lines = audited(tmp_path)
    assert [line["what"] for line in lines] == ["sent", "sent again", "sent"]
    assert lines[0]["reply"] == lines[1]["reply"] != lines[2]["reply"]
    assert lines[0]["epsilon"] == lines[1]["epsilon"] < lines[2]["epsilon"]
    ledger = Budget(Policy(clip=1.0, noise_multiplier=1.0), tmp_path / "state")
    assert ledger.epsilon == lines[2]["epsilon"] == pytest.approx(Policy(clip=1, noise_multiplier=1).spent(_rounds(2)))


def _rounds(count: int) -> Any:
    return Ledger([(Noise(0.5), count)])


@pytest.mark.slow
def test_a_stored_reply_of_another_policy_is_not_sent(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path):
        assert server.update(1).model["w"].tolist() == [1, 1, 1]
        until_exists(tmp_path / "state" / "record")
    with agent(server, tmp_path, NOISE):
        server.sessions.get(timeout=SOON)
        assert server.update(1).model["w"].tolist() != [1, 1, 1]


@pytest.mark.slow
def test_budget_is_spent_over_restarts(server: Server, tmp_path: Path) -> None:
    policy = Policy(clip=1.0, noise_multiplier=1.0)
    most = policy.spent(_rounds(2))
    for number in (1, 2, 3):
        with agent(server, tmp_path, f"{NOISE}max_epsilon = {most + 1e-9}\n"):
            server.sessions.get(timeout=SOON)
            content = server.ask(number).content
            assert isinstance(content, str) == (number == 3)
    assert content.startswith("the budget of this device is spent: epsilon is ")
    assert "policy.max_epsilon" in content


@pytest.mark.slow
def test_update_is_clipped_and_its_noise_has_the_right_size(tmp_path: Path) -> None:
    """Of 20,000 elements, each changed by 1: the clip is 2, so 0.014 is left, and the noise is 2 · 0.5."""
    model = {"w": np.zeros(20_000, np.float32), "n": np.zeros(2, np.int64)}
    for compression in (None, fl.Compression("int8")):
        with federation(model, strategy=fl.FedAvg(compression=compression)) as aggregator:
            policy = Policy(clip=2.0, noise_multiplier=0.5)
            device = config(aggregator, "adds_one", policy=policy, state=tmp_path / str(compression))
            with running(edge.run, device):
                report = aggregator.round()
                aggregator.close()
        assert report.failures == {}
        assert report.num_examples == {ID: 1}
        assert abs(float(np.std(aggregator.model["w"])) - 1.0) < 0.05
        assert abs(float(np.mean(aggregator.model["w"])) - 2 / 20_000**0.5) < 0.05


def test_with_noise_an_evaluation_says_nothing() -> None:
    policy = Policy(clip=2.0, noise_multiplier=0.5)
    task = envelope.Task(envelope.Job(7, 1, "evaluate"), 0, 0, 0, 9.0, Stream())
    for content, sent in (
        (fl.Report(5, {"accuracy": 0.5}), fl.Report(1, {"policy.withheld": 1.0})),
        (Skip("the secret is 42"), Skip("the training skips it; " + FAILED.partition("; ")[2])),
        ("the secret is 42", FAILED),
    ):
        reply = MESSAGES.dump(Reply(envelope.Job(1, 2, "train"), content))
        found = of_federation(policy, task, reply, ())
        read = MESSAGES.load(found.message)
        assert (read.job, str(read.content)) == (task.job, str(sent))
        assert (found.size, found.tensors) == (0, [])


@pytest.mark.parametrize("reply", [{}, {"type": "Reply"}, {"type": "Reply", "content": {"type": "Masked"}}, [1], "x"])
def test_reply_of_another_form_is_no_reply(reply: Any) -> None:
    task = envelope.Task(envelope.Job(7, 1, "train"), 0, 0, 0, 9.0, Stream())
    with pytest.raises((Unreadable, KeyError)):
        of_federation(Policy(), task, JsonSerializer().dump(reply), ())
    with pytest.raises(Unreadable):
        of_flower(Policy(), Ask((7, 1), "", "", Stream()), JsonSerializer().dump(reply), ())


@pytest.mark.parametrize("policy", [Policy(tensors=("*",), metrics=("*",)), Policy(clip=1.0, noise_multiplier=1.0)])
def test_statistics_without_columns_do_not_leave(policy: Policy) -> None:
    task = envelope.Task(envelope.Job(7, 1, "statistics"), 0, 0, 0, 9.0, Stream())
    reply = MESSAGES.dump(Reply(task.job, Answered({"vector": "the secret is 42", "withheld": {}})))
    with pytest.raises(Unreadable, match="it names none"):
        of_federation(policy, task, reply, ())


def test_each_number_of_a_flower_app_has_a_name_of_its_own() -> None:
    records = [["a", "metrics", [["b.c", 1], ["b.c", 42]]], ["a.b", "metrics", [["c", 43]]]]
    ask, policy = Ask((7, 1), "", "", Stream()), Policy(tensors=(), metrics=("a.b.c",))
    for content in ([records[0]], [records[1], ["a", "metrics", [["b.c", 1]]]]):
        with pytest.raises(Unreadable, match="two values have one name"):
            of_flower(policy, ask, JsonSerializer().dump({"type": "Reply", "content": content}), ())


def test_noise_covers_all_tensors_of_the_task_or_none() -> None:
    start: dict[str, Any] = {"w": np.zeros(3, np.float32), "n": np.zeros(1, np.int64), "m": np.zeros(1, np.int64)}
    task, policy = Task(Job(7, 1, "train"), start, {}), Policy(clip=1.0, noise_multiplier=1.0)
    reply = MESSAGES.dump(Reply(task.job, fl.Update(start, 1)))
    assert MESSAGES.load(noising.of_federation(policy, MESSAGES.dump(task), reply)).content.model.keys() == start.keys()
    for name in start:
        part = {other: start[other] for other in start if other != name}
        reply = MESSAGES.dump(Reply(task.job, fl.Update(part, 1)))
        with pytest.raises(InvalidUpdate, match=f"'{name}' is .*missing"):
            noising.of_federation(policy, MESSAGES.dump(task), reply)


def test_a_task_of_many_levels_is_refused(tmp_path: Path) -> None:
    def source(task: envelope.Task, plain: Any) -> Source:
        if task.job.round == 1:
            return Source("a" * 64, "")
        raise RecursionError

    rules = federation_work(edge.Config(netq.NetworkLocation("a", 1), train="a:b")).rules._replace(source=source)
    guard = Guard(Policy(approve=True, audit=tmp_path / "audit.jsonl"), rules, tmp_path, "a:1")
    for number, why in ((1, "waits for the approval"), (2, "the task cannot be read: RecursionError")):
        task = envelope.ENVELOPES.load(MESSAGES.dump(Task(Job(7, number, "train"), {}, {})))
        assert guard.refused(task, guard.begin(task)).startswith(why)
    assert [line.get("source") for line in audited(tmp_path)] == ["a" * 64, None]


def test_what_was_checked_is_what_leaves() -> None:
    """The training may still have the file of its record, and change it after the check."""
    task = envelope.Task(envelope.Job(7, 1, "train"), 0, 0, 0, 9.0, Stream())
    reply = MESSAGES.dump(Reply(task.job, fl.Update({"w": np.zeros(3, np.float32)}, 1, {"loss": 0.5})))
    rules = federation_work(edge.Config(netq.NetworkLocation("a", 1), train="a:b")).rules
    guard = Guard(Policy(tensors=("w",), metrics=("loss",)), rules, None, "a:1")
    with open(os.memfd_create("record"), "r+b") as file:
        record.write(file.fileno(), task.key, reply, 12, Stream())
        found = guard.allowed(task, record.Record.read(file.fileno(), check=False))
        os.pwrite(file.fileno(), b"\xff" * os.fstat(file.fileno()).st_size, 0)
        assert isinstance(found, Allowed)
        assert MESSAGES.load(found.message).content.model["w"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("compression", [{}, {"dtype": "float16"}])
def test_noise_of_differences_is_added_to_them(compression: dict[str, Any]) -> None:
    """Trained tensors travel as differences then, statistics as they are: both are clipped by how far they moved."""
    start = {"w": np.full(3, 100, np.float32), "mean": np.full(2, 50, np.float32)}
    task = Task(Job(7, 1, "train"), start, {}, deltas=True, roles={"mean": "averaged"}, compression=compression)
    trainer = Trainer(lambda model, config: fl.Update({name: each + 1 for name, each in model.items()}, 1))
    content = trainer.do(task)
    assert not isinstance(content, str)
    reply = MESSAGES.dump(Reply(task.job, content))
    policy = Policy(clip=10.0, noise_multiplier=1e-3)
    found = MESSAGES.load(noising.of_federation(policy, MESSAGES.dump(task), reply)).content.model
    assert found["w"] == pytest.approx(1, abs=0.1)
    assert found["mean"] == pytest.approx(51, abs=0.1)
    assert not (found["w"] == 1).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (Policy(tensors=("columns.*",), metrics=()), None),
        (Policy(tensors=("w",), metrics=()), REFUSED.format("'columns.age' and more")),
    ],
)
def test_statistics_of_columns_are_tensors(tmp_path: Path, policy: Policy, told: str | None) -> None:
    with federation() as aggregator:
        device = config(aggregator, policy=policy, state=tmp_path / "state", settings={"step": 1})
        with running(edge.run, replace(device, columns="tests.edge.training:columns")):
            found = aggregator.statistics_of({"age": fl.Column(0, 100), "none": fl.Column(0, 1)})
            aggregator.close()
    assert {name: each.count for name, each in found.columns.items()} == ({"age": 100} if told is None else {})
    assert [str(each) for each in found.failures.values()] == ([] if told is None else [told])
    stays = FAILED.partition("; ")[2]
    assert found.withheld == ({ID: {"none": stays}} if told is None else {})


@pytest.mark.slow
def test_noise_covers_floats_only(tmp_path: Path) -> None:
    model = {"w": np.zeros(3, np.float32), "n": np.zeros(2, np.int64)}
    with federation(model) as aggregator:
        policy = Policy(clip=2.0, noise_multiplier=0.5)
        device = config(aggregator, "adds_one", policy=policy, state=tmp_path / "s", settings={"counts": True})
        with running(edge.run, device):
            report = aggregator.round()
            aggregator.close()
    assert str(report.failures[ID]) == (
        "the policy of this device withholds a reply that it cannot read, or give noise to; the reason is in its log"
    )


@pytest.mark.slow
def test_tasks_wait_for_approval(tmp_path: Path) -> None:
    with federation() as aggregator:
        policy = Policy(approve=True)
        path = write(tmp_path, f'{SERVER}[client]\nstate = "state"\n')
        with running(edge.run, config(aggregator, policy=policy, state=tmp_path / "state")):
            first = aggregator.round()
            told = str(first.failures[ID])
            assert told.startswith(
                "waits for the approval of tasks of 127.0.0.1 with 1 tensors: w; on the device: edge ap"
            )
            prefix = told.split()[-1]
            assert run_edge(str(path), command="approve")[1].startswith(f"waits     {prefix}  tasks of 127.0.0.1")
            status, out, _ = run_edge(str(path), prefix, command="approve")
            assert (status, out.startswith(f"approved  {prefix}")) == (0, True)
            second, third = aggregator.round(), aggregator.round()
            run_edge(str(path), prefix, "--revoke", command="approve")
            fourth = aggregator.round()
            aggregator.close()
    assert [report.clients for report in (second, third)] == [(ID,)] * 2
    assert str(fourth.failures[ID]) == told


def test_approval_of_what_does_not_wait_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, f'{SERVER}[client]\nstate = "state"\n')
    assert run_edge(str(path), command="approve") == (0, "nothing waits for approval\n", "")
    status, _, errors = run_edge(str(path), "0" * 16, command="approve")
    assert (status, errors.count("\n")) == (2, 1)
    assert "HASH: '0000000000000000'; expected one that `edge approve CLIENT.toml` shows" in errors
    write(tmp_path, SERVER)
    assert "client.state: missing; the approvals are in this folder" in run_edge(str(path), command="approve")[2]


@pytest.mark.slow
def test_nothing_leaves_when_the_audit_log_cannot_be_written(tmp_path: Path) -> None:
    audit = tmp_path / "folder" / "audit.jsonl"
    audit.parent.mkdir()
    with federation() as aggregator, running(edge.run, config(aggregator, policy=Policy(audit=audit))):
        first = aggregator.round()
        audit.unlink()
        audit.parent.rmdir()
        second = aggregator.round()
        aggregator.close()
    assert first.clients == (ID,)
    assert str(second.failures[ID]) == (
        "the policy of this device withholds it: its audit log cannot be written (No such file or directory)"
    )


@pytest.mark.slow
def test_policy_goes_with_masks(tmp_path: Path) -> None:
    """Three devices of which one adds noise: the masks are put on what has noise already."""
    ids = [uuid.UUID(int=number) for number in range(1, 4)]
    policies = [Policy(), Policy(tensors=("w",), metrics=()), Policy(clip=100.0, noise_multiplier=1e-3)]
    strategy, secure = fl.FedAvg(max_examples="equal"), fl.SecureAggregation()
    with federation(strategy=strategy, secure=secure) as aggregator, ThreadPoolExecutor() as pool:
        devices = [
            replace(config(aggregator, policy=policy, state=tmp_path / str(id), settings={"step": 0.25}), id=id)
            for id, policy in zip(ids, policies, strict=True)
        ]
        runs = [pool.submit(edge.run, device) for device in devices]
        aggregator.wait(3)
        report = aggregator.round()
        aggregator.close()
        for run in runs:
            run.result(SOON)
    assert sorted(report.clients) == ids
    assert aggregator.model["w"] == pytest.approx(0.25, abs=0.2)  # six deviations of 0.1 / 3
    assert aggregator.model["w"] != pytest.approx(0.25, abs=1e-4)


@pytest.mark.parametrize("text", ["[[1]]", "{}", '""', "", "[" * 10**5], ids=["short", "dict", "text", "empty", "deep"])
def test_damaged_budget_is_not_begun_anew(tmp_path: Path, text: str) -> None:
    policy = Policy(clip=1.0, noise_multiplier=1.0, max_epsilon=100)
    budget = Budget(policy, tmp_path)
    budget.spend()
    assert Budget(policy, tmp_path).epsilon == budget.epsilon > 0
    (tmp_path / "budget.json").write_text(text)
    with pytest.raises(NotNow, match=r"budget\.json: is no budget of an agent; restore it, or remove it"):
        Budget(policy, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('tensors = "w"\n', "policy.tensors: 'w'; expected a list of names"),
        ('tensors = ["w"]\n', 'policy.metrics: missing; with policy.tensors, name these too, or say ["*"] for all'),
        ('metrics = ["w"]\n', 'policy.tensors: missing; with policy.metrics, name these too, or say ["*"] for all'),
        ("clip = 1.0\n", "policy.noise_multiplier: missing; expected a number, as there is policy.clip"),
        ("noise_multiplier = 1.0\n", "policy.clip: missing; expected a number, as there is policy.noise_multiplier"),
        ("max_epsilon = 1.0\n", "policy.max_epsilon: 1.0; expected it with clip and noise_multiplier"),
        ("clip = 0\nnoise_multiplier = 1\n", "policy.clip: 0; expected a number from "),
        ("clip = 1\nnoise_multiplier = 1\nmax_epsilon = 1\n", "policy.max_epsilon: 1; expected more than the "),
        ("clip = 1\nnoise_multiplier = 1\nmetrics = []\n", "policy.metrics: (); expected none: no metric leaves"),
        ("clip = 1\nnoise_multiplier = 1\n", "policy.noise_multiplier: needs client.state, a folder"),
        ("approve = true\n", "policy.approve: needs client.state, a folder"),
        ("approve = 1\n", "policy.approve: 1; expected true or false"),
        ('audit = "no/a.jsonl"\n', "policy.audit: "),
        ("noise = 1\n", "policy.noise: no such key"),
    ],
)
def test_mistake_in_the_table_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, f"{SERVER}[policy]\n{text}")
    message = refusal(path)
    assert message.startswith(f"{path}: {said}")
    assert "\n" not in message


def test_tables_of_the_page_are_right(tmp_path: Path) -> None:
    first, noise = Page("docs/how-to/policy.md").blocks("toml")
    first, client = first.replace("/var/lib/edge", "state"), '[client]\nstate = "state"\n'
    assert edge.Config.load(write(tmp_path, SERVER + first)).policy == Policy(
        tensors=("head.*",), metrics=("loss", "usage.*"), approve=True, audit=tmp_path / "audit.jsonl"
    )
    assert edge.Config.load(write(tmp_path, SERVER + client + noise)).policy == Policy(
        clip=1.0, noise_multiplier=10.0, max_epsilon=8.0
    )
    for multiplier, *epsilons in Page("docs/how-to/policy.md").rows("`noise_multiplier`"):
        counted = [Ledger([(Noise(float(multiplier) / 2), count)]).epsilon(1e-5) for count in (1, 10, 100)]
        assert [float(each) for each in epsilons] == pytest.approx(counted, rel=0.02)


def test_compression_is_not_for_noise(tmp_path: Path) -> None:
    path = write(tmp_path, f'{SERVER}[client]\nstate = "state"\ncompression = "int8"\n{NOISE}')
    assert refusal(path).startswith(f"{path}: client.compression: 'int8'; an update with the noise of [policy] is sent")


def test_patterns_name_tensors_with_brackets() -> None:
    policy = Policy(tensors=("head.*", "layers[0]"), metrics=())
    assert [policy.lets_tensor(name) for name in ("head.w", "layers[0]", "layers0", "body")] == [
        True,
        True,
        False,
        False,
    ]


def test_agent_loads_no_object_of_the_child_but_its_answers() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        send(theirs, Done(is_kept=True))
        assert receive_answer(ours) == (Done(is_kept=True), [])
        for other in (Path("x"), Order("key"), os.system):
            send(theirs, other, theirs.fileno())
            with pytest.raises(pickle.UnpicklingError, match="is no answer"):
                receive_answer(ours)


def test_agent_with_a_policy_of_names_needs_no_numpy() -> None:
    policy = "edge.Policy(tensors=('w',), metrics=(), approve=True)"
    code = (
        f"import sys, edge.agent, edge.flower; {policy}; print({{'numpy', 'flwr', 'cryptography'}} & {{*sys.modules}})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_scripts_get_the_same_errors() -> None:
    with pytest.raises(InvalidOption, match=r"needs client\.state"):
        edge.run(edge.Config(("127.0.0.1", 1), train="a:b", policy=Policy(approve=True)))  # type: ignore[arg-type]
