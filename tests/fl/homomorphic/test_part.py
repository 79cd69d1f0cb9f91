"""A key that encrypts some tensors only: what both sides do with the others, and what a client never sends in plain."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
import netq
from edge.masks import Masks
from edge.work import _reading
from fl.__main__ import _decrypted
from fl.envelope import Finished, Job, values
from fl.envelope import Task as Envelope
from fl.errors import InvalidUpdate
from fl.homomorphic.client import TERMS, Encrypting
from fl.homomorphic.codec import CIPHERTEXTS, HEADER, Header, update_name
from fl.homomorphic.codec import nbytes as ciphertexts_of
from fl.homomorphic.options import KeyFile
from fl.messages import MESSAGES, Task, Update, with_fields
from fl.secure.masker import Masker
from fl.server.checkpoint import load
from fl.server.encrypted import EncryptedSum
from fl.tensors.spec import Spec, nbytes
from fl.trainer import Trainer
from netq.errors import InvalidOption
from netq.utils.stream import Stream
from tests.edge.test_agent import running
from tests.fl.federation import A, B, Federation, at
from tests.fl.homomorphic.keys import CLIENT, Circle, files

PART = ("conv.*", "head")
KEY, CONTEXT = files(encrypt=PART)
ROLES = {"conv.mask": "constant", "own": "local"}
MODEL: dict[str, Any] = {
    "conv.w": np.zeros((2, 3), np.float32),
    "conv.mask": np.ones(2, np.float32),
    "body": np.zeros(4, np.float32),
    "count": np.array([2], np.int64),
    "running_mean": np.zeros(2),
    "head": np.zeros(3),
    "own": np.ones(1),
}
HIDDEN, PLAIN = {"conv.w", "head"}, {"body", "count", "running_mean"}
SENT = {name: tensor for name, tensor in MODEL.items() if name in HIDDEN | PLAIN}


def part(model: Any = None, **options: Any) -> Circle:
    return Circle(SENT if model is None else model, encrypt=PART, **options)


def moved(model: Mapping[str, Any], step: int) -> dict[str, Any]:
    return {name: model[name] + np.asarray(step, model[name].dtype) for name in SENT}


def train(model: Any, config: Any) -> Update:
    assert list(model["conv.mask"]) == [1, 1]
    return Update({**moved(model, 1), "own": model.get("own", np.zeros(1)) + 1}, 3, {"step": 1.0})


def test_some_tensors_are_summed_encrypted_and_others_by_the_strategy() -> None:
    circle = part()
    for number in (1, 2):
        start: Any = circle.client.begin(circle.task).opened(circle.task).model
        for step, examples in ((1, 1), (3, 3)):
            update = circle.update(moved(start, step), examples)
            assert update.model.keys() == {update_name(circle.client._key.key), *PLAIN}
            of_plain = nbytes({name: update.model[name] for name in PLAIN})
            assert circle.sum.nbytes == ciphertexts_of(circle.sum._context, circle.sum._header.specs) + of_plain
            mixed = dict(reversed(update.model.items()))
            circle.fold(replace(update, model=mixed))
        found = circle.opened()
        assert circle.model.keys() == {CIPHERTEXTS, HEADER, *PLAIN}
        for name in ("body", "running_mean"):
            assert np.array_equal(circle.model[name], np.full_like(MODEL[name], 2.5 * number))
        assert found["count"] == start["count"] + 2
        for name in HIDDEN:
            assert found[name] == pytest.approx(np.full(MODEL[name].shape, 2.5 * number), abs=1e-5)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("fails", ["plain", "ciphertexts"])
def test_a_refused_update_leaves_both_parts_as_they_were(fails: str, is_first: bool) -> None:
    circle = part()
    if not is_first:
        circle.fold(circle.update(moved(SENT, 1), 1))
    wrong = circle.update(moved(SENT, 9), 5)
    name = update_name(circle.client._key.key)
    change = {"body": np.full(4, np.nan, np.float32)} if fails == "plain" else {name: wrong.model[name][:-1]}
    with pytest.raises(InvalidUpdate, match="NaN" if fails == "plain" else "bytes of ciphertexts"):
        circle.fold(replace(wrong, model=wrong.model | change))
    if is_first:  # a round that does not count leaves nothing either
        circle.fold(wrong)
        circle.sum.abandon()
    circle.fold(circle.update(moved(SENT, 1), 2))
    found = circle.opened()
    assert all(found[name] == pytest.approx(SENT[name] + 1, abs=1e-5) for name in SENT)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"conv.w": SENT["conv.w"]}, "'conv.w' is unexpected"),
        ({"conv.mask": np.zeros(2)}, "'conv.mask' is constant, and has changed"),
        ({"body": None}, "'body' is missing"),
    ],
    ids=["encrypted", "constant", "missing"],
)
def test_the_server_refuses_other_plain_tensors(change: dict[str, Any], why: str) -> None:
    circle = part({**SENT, "conv.mask": np.ones(2)}, roles={"conv.mask": "constant"})
    update = circle.update(SENT, 1)
    found = {name: tensor for name, tensor in (update.model | change).items() if tensor is not None}
    with pytest.raises(InvalidUpdate, match=why):
        circle.fold(replace(update, model=found))


def test_a_pattern_that_matches_no_tensor_is_refused() -> None:
    context = files(encrypt=("convolution.*",))[1]
    with pytest.raises(InvalidOption, match=r"server\.context: encrypt: no tensor is named 'convolution\.\*'"):
        fl.Server(SENT, secure=fl.Homomorphic(context))
    circle = part()
    for name in HIDDEN:  # by name, and by pattern
        task = with_fields(circle.task, model={each: SENT[each] for each in SENT if each != name})
        with pytest.raises(InvalidUpdate, match="this client's key: no tensor is named"):
            circle.client.begin(task)
    constant = with_fields(circle.task, roles={"conv.w": "constant"})
    with pytest.raises(InvalidUpdate, match="this client's key: no tensor is named"):
        circle.client.begin(constant)


def test_what_cannot_be_encrypted_may_be_plain() -> None:
    torch = pytest.importorskip("torch")
    model = {"conv.w": np.ones(2), "head": np.ones(2), "body": torch.ones(2, dtype=torch.bfloat16)}
    model |= {"running_min": np.array([np.inf]), "a.parametrizations.b.original": np.ones(2)}
    model |= {"a.parametrizations.b.0._u": np.array([0.6, 0.8])}
    circle = part(model)
    circle.fold(circle.update(model, 1))
    found = circle.opened()
    assert found["body"].tolist() == [1, 1]
    assert found["running_min"] == np.inf
    assert found["a.parametrizations.b.0._u"] == pytest.approx([0.6, 0.8])
    with pytest.raises(InvalidOption, match=r"'head' is bfloat16, which is not encrypted.*or a key that is not for it"):
        part({**model, "head": model["body"]})


# A server that lies


def later() -> Circle:
    """Return a circle whose model is ciphertexts."""
    circle = part()
    circle.fold(circle.update(moved(SENT, 1), 1))
    circle.opened()
    return circle


def lie(circle: Circle, model: Mapping[str, Any], **changed: Any) -> Task:
    """Return a task with a header that names other tensors. None: one tensor less."""
    header = Header.load(circle.model[HEADER])
    specs = {name: spec for name, spec in {**header.specs, **changed}.items() if spec is not None}
    model = {**circle.model, HEADER: header._replace(specs=specs).dump(), **model}
    return with_fields(circle.task, model={name: tensor for name, tensor in model.items() if tensor is not None})


def test_a_client_refuses_to_decrypt_what_it_would_send_in_plain() -> None:
    """The ciphertexts of one client's head, under the name of a tensor that travels in plain."""
    circle = later()
    spec = Spec((3,), "float64", None)
    for task in (lie(circle, {"body": None}, body=spec), lie(circle, {}, body=spec), lie(circle, {}, other=spec)):
        with pytest.raises(InvalidUpdate, match=r"the server encrypts '(body|other)', and this client's key does not"):
            circle.client.begin(task)


def test_a_client_refuses_a_plain_tensor_of_its_key_within_a_model_of_ciphertexts() -> None:
    circle = later()
    weights = SENT["conv.w"]
    for task in (
        lie(circle, {"conv.w": weights}),
        lie(circle, {"conv.b": weights}),
        lie(circle, {"head": weights}, head=None),
    ):
        with pytest.raises(InvalidUpdate, match=r"has '(conv|head).*' in plain, and this client's key encrypts it"):
            circle.client.begin(task)


def test_a_first_model_again_gets_encrypted_updates() -> None:
    """The server may send a plain model in any round, or leave the header out."""
    circle = later()
    for model in (SENT, {**circle.model, **SENT, HEADER: None}):
        task = with_fields(circle.task, model={name: each for name, each in model.items() if each is not None})
        content: Any = circle.client.begin(task).mask(Update(moved(SENT, 1), 1))
        assert content.model.keys() == {update_name(circle.client._key.key), *PLAIN}


def test_a_tensor_named_as_a_pattern_hides_no_other() -> None:
    """For roles, a name outweighs patterns. Here it would be a way to take 'conv.w' out of them."""
    circle = part()
    decoy = {**SENT, "conv.*": np.zeros(1)}
    content: Any = circle.client.begin(with_fields(circle.task, model=decoy)).mask(Update(decoy, 1))
    assert content.model.keys() == {update_name(circle.client._key.key), *PLAIN}


def test_an_update_with_other_names_is_not_sent() -> None:
    circle = part()
    for name in ("_orig_mod.conv.w", "conv.v", "x"):
        with pytest.raises(InvalidUpdate, match=f"'{name}' is unexpected"):
            circle.update({**SENT, name: SENT["conv.w"]}, 1)
    with pytest.raises(InvalidUpdate, match="'body' is missing"):
        circle.update({name: SENT[name] for name in HIDDEN}, 1)


@pytest.mark.parametrize("role", ["constant", "local"])
def test_roles_of_the_server_take_no_tensor_out_of_the_key(role: str) -> None:
    circle = part({**SENT, "conv.v": SENT["conv.w"]})
    task = with_fields(circle.task, roles={"conv.v": role})
    with pytest.raises(InvalidUpdate, match=r"'conv\.v' is unexpected"):
        circle.client.begin(task).mask(Update({**SENT, "conv.v": SENT["conv.w"]}, 1))


def test_an_encrypted_tensor_shares_no_memory_with_a_plain_one() -> None:
    """What training writes in place into one would be in the other, which is sent in plain."""
    circle, shared = part(), np.zeros(6, np.float32)
    empty = {**SENT, "running_mean": shared[:0], "head": shared[:0]}  # without elements, they share none
    tied = {**empty, "conv.w": shared.reshape(2, 3), "body": shared[:4]}
    circle.client.begin(with_fields(circle.task, model=empty))
    why = "'conv.w' is not sent in plain, and has the same memory as 'body', which is"
    with pytest.raises(InvalidUpdate, match=why):
        circle.client.begin(with_fields(circle.task, model=tied))
    with pytest.raises(InvalidUpdate, match=why):  # tied weights of the client
        circle.update(tied, 1)


@pytest.mark.parametrize("role", ["constant", "local"])
@pytest.mark.parametrize("is_first", [True, False])
def test_no_role_gives_a_tensor_the_memory_of_a_plain_one(role: str, is_first: bool) -> None:
    """Training writes into local and constant tensors, too, and does not send them."""
    circle, shared = part() if is_first else later(), np.zeros(4, np.float32)
    model = {**circle.model, "conv.v": shared, "body": shared}
    task = with_fields(circle.task, model=model, roles={"conv.v": role})
    with pytest.raises(InvalidUpdate, match=r"'conv\.v' is not sent in plain, and has the same memory as 'body'"):
        circle.client.begin(task)


def answer(task: Task, train: Any) -> Finished | str:
    """Return what a client sends, of which a server asks this."""
    masker = Masker(fl.SecurePolicy(key=KEY), netq.CommunicatorOptions())
    masker.check()
    sent = Envelope(task.job, 0, 0, 0, 1.0, Stream([]), is_secure=True, values=values(task))
    return Trainer(train).answer(sent, None, masker)


def test_a_difference_does_not_part_tied_weights() -> None:
    def tied(model: Any, config: Any) -> Update:
        return Update({**model, "body": model["conv.w"]}, 1)

    model = {**SENT, "conv.w": np.zeros(4, np.float32)}
    for deltas, why in ((False, "has the same memory as 'body'"), (True, "asks for a difference")):
        found = answer(with_fields(part().task, model=model, deltas=deltas), tied)
        assert isinstance(found, str)
        assert why in found


def test_a_task_that_is_not_valid_does_not_end_the_client() -> None:
    task = part().task
    huge = {TERMS: {**task.secure[TERMS], "clients": 10**400}}  # which no float is
    for wrong, why in (
        (with_fields(task, secure=huge), "the terms of homomorphic encryption are not valid"),
        (with_fields(task, model=[]), "the task cannot be read: .*expected a dict of arrays"),
        (with_fields(task, job=Job(1, 1, "secure"), secure={**task.secure, "step": "keys"}), "homomorphic encryption"),
    ):
        found = answer(wrong, train)
        assert isinstance(found, str)
        assert re.search(why, found)


# Files, rounds and devices


def test_the_key_is_named_by_its_patterns_too(tmp_path: Path) -> None:
    file = KeyFile.read(KEY, is_secret=True)
    assert file.encrypt == KeyFile.read(CONTEXT, is_secret=False).encrypt == PART
    assert file.secret is not None
    other = KeyFile.of_secret(file.parameters, file.secret, ("conv.*", "body"))
    assert other.key != file.key
    for wrong, why in ((["conv.*"], "another name"), ("head", "another name"), (None, "damaged"), ([], "another name")):
        path = tmp_path / "clients.key"
        path.write_text(json.dumps({**json.loads(KEY.read_text()), "encrypt": wrong}))
        with pytest.raises(InvalidOption, match=why):
            KeyFile.read(path, is_secret=True)
    for patterns in ((), ("",)):
        with pytest.raises(InvalidOption, match=r"encrypt: .*; expected names of tensors, or patterns"):
            KeyFile.of_secret(file.parameters, file.secret, patterns)


def test_a_server_whose_file_was_changed_gets_no_plain_tensor(tmp_path: Path) -> None:
    """It has no secret to check the key's name with."""
    path = tmp_path / "server.context"
    path.write_text(json.dumps({**json.loads(CONTEXT.read_text()), "encrypt": ["head"]}))
    circle = part()
    update = circle.update(SENT, 1)
    lying = EncryptedSum(fl.Homomorphic(path), fl.FedAvg(), SENT, circle.roles)
    with pytest.raises(
        InvalidUpdate, match=r"encrypts 'conv\.\*', 'head', and its server \['head'\]: give both the files"
    ):
        circle.client.begin(with_fields(circle.task, secure=lying.terms(1)))
    with pytest.raises(InvalidUpdate, match=r"'conv\.w' is missing"):
        lying.fold(SENT, update, CLIENT, 0)


def test_rounds_resume_export_and_the_last_model(tmp_path: Path) -> None:
    path, secure, policy = tmp_path / "federation.ckpt", fl.Homomorphic(CONTEXT), fl.SecurePolicy(key=KEY)
    client = fl.Client(train, lambda model, config: fl.Report(1, {"head": model["head"][0].item()}), secure=policy)
    options: Any = {"secure": secure, "roles": ROLES, "evaluate": True, "checkpoint": path}
    with Federation(MODEL, **options, min_clients=2) as federation:
        for id in (A, B):
            federation.start(client.run, at(federation.server.netloc, id))
        described = federation.server._description(fl.ClientInfo(A, {}))
        assert described.tensors.keys() == MODEL.keys() - {"own"}
        assert federation.round(2).evaluation["head"] == pytest.approx(1, abs=1e-5)
        assert federation.server.model.keys() == {CIPHERTEXTS, HEADER, "conv.mask", *PLAIN}
        assert federation.server.model["body"].tolist() == [1, 1, 1, 1]
        described = federation.server._description(fl.ClientInfo(A, {}))
        assert described.tensors.keys() == MODEL.keys() - {"own"}
    exported = _decrypted(path, load(path)["model"], KEY)
    assert exported["head"] == pytest.approx([1, 1, 1], abs=1e-5)
    assert exported["count"] == [3]
    resumed, ran = fl.Server.resume(path, at(federation.server.netloc), secure=secure, min_clients=1), list[Any]()
    with resumed, running(lambda: ran.append(client.run(at(resumed.netloc, A)))):
        assert [report.clients for report in resumed.rounds(1)] == [(A,)]
        resumed.close()
    assert {name: ran[0][name].tolist() for name in ("body", "count")} == {"body": [2, 2, 2, 2], "count": [4]}
    assert ran[0]["conv.w"] == pytest.approx(np.full((2, 3), 2), abs=1e-5)


def test_an_agent_passes_plain_tensors_of_torch_on_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    circle = part({"conv.w": torch.ones(3), "head": torch.ones(1), "body": torch.ones(2)})
    circle.fold(circle.update(circle.model, 5))
    circle.model = circle.sum.finish(circle.model, 1)
    task = circle.task
    sent = Envelope(task.job, 0, 0, 0, 1.0, MESSAGES.dump(task), is_secure=True)
    masks = Masks(fl.SecurePolicy(key=KEY), netq.CommunicatorOptions(), _reading)
    masks.check()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        begun = masks.begin(sent, A)
        assert isinstance(begun, Encrypting)
        opened = masks.opened(begun, sent)
        assert isinstance(opened, Envelope)
        reply = MESSAGES.dump(
            fl.messages.Reply(
                task.job,
                Update(
                    {"conv.w": np.ones(3, np.float32), "head": np.ones(1, np.float32), "body": np.ones(2, np.float32)},
                    1,
                ),
            )
        )
        assert isinstance(masks.masked(begun, sent, reply), Finished)
    found = MESSAGES.load(opened.stream).model
    assert {name: tensor.dtype for name, tensor in found.items()} == dict.fromkeys(found, torch.float32)
