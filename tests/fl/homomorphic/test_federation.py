"""A server and clients over a network, under homomorphic encryption."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge
import fl
import netq
from edge.check import check
from edge.group import Group
from edge.masks import Masks
from edge.tasks import TrainingTasks
from edge.work import _reading, federation
from fl.config.server import Config, load_flower
from fl.envelope import Finished
from fl.envelope import Task as Envelope
from fl.homomorphic.codec import CIPHERTEXTS, HEADER
from fl.messages import MESSAGES, Final
from fl.server.limits import limits
from netq.errors import InvalidOption
from tests.edge.test_agent import config, running, server
from tests.fl.federation import SOON, A, B, C, Federation, Train, adds, at, filled, gives, reasons, zeros
from tests.fl.homomorphic.keys import Circle, files

KEY, CONTEXT = files()
SECURE = fl.Homomorphic(CONTEXT)
HOLDS = fl.SecurePolicy(key=KEY)


class Shrinks(fl.FedAvg):
    """Does more than the mean."""

    def finish(self, model: Any, *, number: int) -> Any:
        return {name: tensor / 2 for name, tensor in super().finish(model, number=number).items()}


class Roots(fl.FedAvg):
    """Weighs by numbers that the clients do not know."""

    def examples(self, claimed: int) -> int:
        return int(claimed**0.5)


def client(
    federation: Federation, id: Any, train: Train, secure: fl.SecurePolicy | None = HOLDS, **options: Any
) -> Any:
    return federation.start(fl.Client(train, secure=secure, **options).run, at(federation.server.netloc, id))


def test_rounds_and_the_last_model() -> None:
    with Federation(secure=SECURE, evaluate=True) as federation:
        runs = [
            client(federation, id, adds(step), evaluate=lambda model, config: fl.Report(1, {"w": model["w"][0].item()}))
            for id, step in ((A, 1), (B, 2))
        ]
        reports = [federation.round(2) for _ in range(2)]
        assert federation.server.model.keys() == {CIPHERTEXTS, HEADER}
        described = federation.server._description(fl.ClientInfo(A, {}))
        assert described.tensors == {"w": ((3,), "float32", False)}  # for a device that tries a training out
        assert [report.evaluation["w"] for report in reports] == pytest.approx([1.5, 3.0], abs=1e-5)
        federation.server.close(SOON)
        for run in runs:
            assert run.result(SOON)["w"] == pytest.approx(filled(3.0)["w"], abs=1e-5)


def test_tensors_of_torch_roles_and_local_ones() -> None:
    torch = pytest.importorskip("torch")
    model = {"w": torch.zeros(3), "running_var": torch.ones(2), "head": torch.zeros(1), "mask": torch.ones(2)}

    def train(model: Any, config: Any) -> fl.Update:
        assert all(isinstance(tensor, torch.Tensor) for tensor in model.values())
        assert model["mask"].tolist() == [1, 1]
        return fl.Update({**{name: tensor + 1 for name, tensor in model.items()}, "mask": model["mask"]}, 1)

    roles = {"head": "local", "mask": "constant"}
    with Federation(model, secure=SECURE, roles=roles, min_clients=1) as federation:
        run = client(federation, A, lambda model, config: train({"head": torch.zeros(1), **model}, config))
        for _ in range(2):
            assert federation.round(1).clients == (A,)
        assert federation.server.model.keys() == {"mask", CIPHERTEXTS, HEADER}
        federation.server.close(SOON)
        found = run.result(SOON)
    assert {name: tensor.round(decimals=3).tolist() for name, tensor in found.items()} == {
        "w": [2, 2, 2],
        "running_var": [3, 3],
        "head": [2],
        "mask": [1, 1],
    }


def test_clients_without_the_key_and_with_another_are_left_out_and_told_why() -> None:
    others = [("without", None), ("another", fl.SecurePolicy(key=files(1)[0]))]
    with Federation(secure=SECURE, min_clients=1) as federation:
        client(federation, A, adds(1))
        for id, (_, secure) in zip((B, C), others, strict=True):
            client(federation, id, adds(5), secure, final_model=False)
        report = federation.round(3)
    assert report.clients == (A,)
    assert "this client has no key: expected the clients' file of fl secure-key" in reasons(report)[B]
    assert "give both the files of one call of fl secure-key" in reasons(report)[C]


@pytest.mark.parametrize(
    ("secure", "why"),
    [
        (None, "homomorphic encryption only, and the server does not use it"),
        (fl.SecureAggregation(min_clients=3), "and the server uses masks"),
    ],
)
def test_a_client_with_a_key_answers_no_other_server(secure: Any, why: str) -> None:
    others = {A: None, B: None, C: HOLDS} if secure is None else {A: HOLDS, B: HOLDS, C: HOLDS}
    with Federation(secure=secure, min_clients=1, strategy=fl.FedAvg(max_examples=9)) as federation:
        for id, policy in others.items():
            client(federation, id, adds(1), policy)
        report = federation.round(3)
    assert why in reasons(report)[C]


def test_a_server_asks_for_no_statistics_in_plain() -> None:
    with Federation(secure=SECURE, min_clients=1) as federation, pytest.raises(InvalidOption, match="in plain"):
        federation.server.statistics_of({"age": fl.Column(low=0, high=100)})


def test_a_server_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "federation.ckpt"
    roles = {"mask": "constant", "head": "local"}
    model = {"w": np.zeros(3), "mask": np.ones(1), "head": np.ones(1)}

    def train(model: Any, config: Any) -> fl.Update:
        return fl.Update({"w": model["w"] + 1, "mask": model["mask"], "head": np.ones(1)}, 7)

    with Federation(model, secure=SECURE, min_clients=1, checkpoint=path, roles=roles) as federation:
        client(federation, A, train)
        federation.round(1)
    resumed, ran = fl.Server.resume(path, at(federation.server.netloc), secure=SECURE, min_clients=1), list[Any]()
    with resumed, running(lambda: ran.append(fl.Client(train, secure=HOLDS).run(at(resumed.netloc, A)))):
        assert [report.clients for report in resumed.rounds(1)] == [(A,)]
        resumed.close()
    assert ran[0]["w"] == pytest.approx([2, 2, 2], abs=1e-5)
    for secure, why in ((None, "the model is encrypted"), (fl.Homomorphic(files(1)[1]), "is encrypted for")):
        with pytest.raises(InvalidOption, match=why):
            fl.Server.resume(path, secure=secure)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strategy": fl.FedAdam()}, "FedAdam does more than the mean"),
        ({"strategy": Shrinks()}, "Shrinks does more than the mean"),
        ({"strategy": Roots()}, "Roots does more than the mean"),
        ({"strategy": fl.FedMedian()}, "FedMedian does more than the mean"),
        ({"strategy": fl.FedBuff(size=3)}, "FedBuff does more than the mean"),
        ({"strategy": fl.FedAvg(compression="int8")}, "compression int8; ciphertexts cannot be packed"),
        ({"strategy": fl.FedAvg(staleness="polynomial(0.5)")}, "takes late updates"),
        ({"relays": True}, "relays: a relay adds no ciphertexts"),
        ({"privacy": fl.DifferentialPrivacy(clip=1.0, noise_multiplier=1.0)}, "no differential privacy"),
        (
            {"model": {"w.parametrizations.weight.original": np.ones(3), "w.parametrizations.weight.0._u": np.ones(3)}},
            "unit",
        ),
        ({"model": {"w": np.ones(2), "running_min": np.array([np.inf])}}, "holds infinity"),
        ({"secure": "server.context"}, "Server.secure: 'server.context'; expected an object"),
        ({"secure": fl.Homomorphic(KEY)}, r"Homomorphic\.context: .*has the secret key"),
        ({"secure": fl.Homomorphic("absent")}, "absent: cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_ciphertexts_cannot_do_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        fl.Server(**{"model": zeros(), "secure": SECURE, **options})


@pytest.mark.parametrize("strategy", [fl.FedAvg(fraction=0.5), fl.FedProx(mu=0.1)], ids=["fedavg", "fedprox"])
def test_strategies_of_means_are_taken(strategy: fl.Strategy) -> None:
    with Federation(secure=SECURE, min_clients=1, strategy=strategy) as federation:
        client(federation, A, gives(1.0))
        assert federation.round(1).clients == (A,)


def test_a_client_whose_numbers_are_too_large_is_told() -> None:
    with Federation(secure=SECURE, min_clients=1) as federation:
        client(federation, A, gives(1.0, 10**6))
        client(federation, B, gives(1000.0, 10**6))
        client(federation, C, gives(float("nan")))
        report = federation.round(3)
    assert report.clients == (A,)
    assert "'w' times 1000000 examples is beyond the parameters' range" in reasons(report)[B]
    assert "'w' holds NaN or infinity" in reasons(report)[C]


def test_a_memory_limit_counts_ciphertexts() -> None:
    assert limits(zeros(), None, encrypted=10**9).task > 10**9
    with pytest.raises(
        InvalidOption, match="bytes, the model, its successor, the sum and an update, as ciphertexts, at least"
    ):
        fl.Server(zeros(), secure=SECURE, memory_limit=10_000)


def test_the_file_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "server.context").write_bytes(CONTEXT.read_bytes())
    model = '[server]\nhost = "127.0.0.1"\nport = 0\nrounds = 1\n[model]\ninitial = "tests.fl.federation:zeros"\n{}\n'
    text = model + '[secure]\ncontext = "server.context"\n'
    path = tmp_path / "aggregator.toml"
    path.write_text(text.format(""))
    assert Config.load(path).settings["secure"] == fl.Homomorphic(tmp_path / "server.context")
    for wrong, why in (
        (text.format('save = "model.npz"'), "model.save: needs a model, and the server has ciphertexts only"),
        (text.format("") + "clip = 1.0\n", "secure.clip: is of masks"),
        (text.format("").replace("server.context", "absent"), "secure.context: 'absent'; expected the path"),
    ):
        path.write_text(wrong)
        with pytest.raises(InvalidOption, match=why):
            Config.load(path)


def test_the_file_of_a_server_of_flower_has_masks_only(tmp_path: Path) -> None:
    path = tmp_path / "flower.toml"
    path.write_text('[server]\nhost = "a"\nport = 1\n[secure]\nmax_examples = "equal"\ncontext = "server.context"\n')
    with pytest.raises(InvalidOption, match=r"secure\.context: no such key"):
        load_flower(path)


# Devices: the agent has the key, and its child trains as always


@pytest.mark.slow
def test_a_device_decrypts_for_its_child(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    with server(secure=SECURE) as aggregator:
        made = config(aggregator, secure=HOLDS, settings={"step": 2}, model=path, check=True, state=tmp_path / "state")
        with running(edge.run, made):
            assert [report.failures for report in aggregator.rounds(3)] == [{}] * 3
            aggregator.close()
    assert np.load(path)["w"] == pytest.approx([6, 6, 6], abs=1e-5)


def test_an_agent_passes_tensors_of_torch_on_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    circle = Circle({"w": torch.ones(3), "half": torch.ones(2, dtype=torch.float16)})
    circle.fold(circle.update(circle.model, 5))
    circle.model = circle.sum.finish(circle.model, 1)
    task = circle.task
    sent = Envelope(task.job, 0, 0, 0, 1.0, MESSAGES.dump(task), is_secure=True)
    masks = Masks(HOLDS, netq.CommunicatorOptions(), _reading)
    masks.check()
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        begun = masks.begin(sent, A)
        assert not isinstance(begun, str | Finished | None)
        opened = masks.opened(begun, sent)
    assert isinstance(opened, Envelope)
    found = MESSAGES.load(opened.stream).model
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in found.items()} == {
        "w": (torch.float32, pytest.approx([1, 1, 1], abs=1e-5)),
        "half": (torch.float16, [1, 1]),
    }


@pytest.mark.slow
def test_a_device_without_the_key_is_told() -> None:
    with server(secure=SECURE) as aggregator, running(edge.run, config(aggregator)):
        [why] = aggregator.round().failures.values()
        aggregator.close()
    assert "this client has no key: expected the clients' file of fl secure-key" in str(why)


def test_a_device_without_the_key_stores_no_ciphertexts(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    tasks = TrainingTasks("tests.edge.training:train", None, None, {}, path)
    with pytest.raises(InvalidOption, match="it is encrypted, and this device has no key"):
        tasks.store(MESSAGES.dump(Final({HEADER: np.zeros(3, np.uint8)})))
    assert not path.exists()


def test_the_file_of_a_device(tmp_path: Path) -> None:
    (tmp_path / "clients.key").write_bytes(KEY.read_bytes())
    path = tmp_path / "device.toml"
    path.write_text('[server]\nhost = "a"\nport = 1\n[client]\ntrain = "a:b"\n[secure]\nkey = "clients.key"\n')
    assert edge.Config.load(path).secure == fl.SecurePolicy(key=tmp_path / "clients.key", required=True)
    (tmp_path / "clients.key").unlink()
    with pytest.raises(InvalidOption, match=r"secure\.key: 'clients.key'; expected the path"):
        edge.Config.load(path)


def test_an_agent_whose_file_has_no_key_does_not_begin(tmp_path: Path) -> None:
    why = r"SecurePolicy\.key: .*: is the server's file, without"
    with server(secure=SECURE) as aggregator:
        made = config(aggregator, secure=fl.SecurePolicy(key=CONTEXT))
        for function in (edge.run, lambda config: check(config, federation(config), Group())):
            with pytest.raises(InvalidOption, match=why):
                function(made)
