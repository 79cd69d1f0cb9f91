"""The aggregator's TOML file: what it gives when it is right, and what is said when it is not."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl
from fl.callbacks.jsonl import record
from fl.config.server import KEYS, CallbackOptions, Config
from fl.config.strategy import STRATEGIES
from fl.schedules import resolved
from netq.errors import InvalidOption
from netq.options import ConnectionOptions, MqttOptions, NetworkLocation, Protocol, SealOptions, SecurityOptions
from tests.fl.federation import A, B, adds, at, filled
from tests.fl.federation import Federation as Running
from tests.pages import Page

SERVER = '[server]\nhost = "127.0.0.1"\nport = 0\nrounds = 2\n'
MODEL = '[model]\ninitial = "tests.fl.federation:zeros"\n'
LEAST = SERVER + MODEL
STOPPING = SERVER + "stop_early = {}\n" + MODEL
PAGE = Page("docs/how-to/aggregator.md")
EXAMPLE = PAGE.blocks("toml")[0]
# Without secure.context, which excludes the other keys of its table.
OF_MQTT = re.sub(r"^# (context = .*)?", "", EXAMPLE, flags=re.MULTILINE)
OF_MQTT = OF_MQTT.replace('protocol = "tcp"', 'protocol = "mqtt"')


WATCH = "import fl\nclass Watch(fl.Callback): pass\n"


class Own(fl.FedAvg):
    """A strategy of somebody's own."""

    def __init__(self, bound: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.bound = bound


class Counts(fl.Callback):
    """A callback of a user."""


COUNTS = Counts()


class FailsToBegin(fl.Callback):
    def __init__(self) -> None:
        raise OSError("no such project")


def a_list() -> list[int]:
    return [1, 2]


class Needs(fl.FedAvg):
    """A strategy with an option that has no default."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound


def raises() -> dict[str, Any]:
    raise RuntimeError("no disk")


def of_text() -> dict[str, Any]:
    return {"w": np.array(["one"])}


def write(folder: Path, text: str) -> Path:
    path = folder / "aggregator.toml"
    path.write_text(text)
    return path


def load(folder: Path, text: str) -> Config:
    return Config.load(write(folder, text))


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InvalidOption) as caught:
        load(folder, text)
    said = str(caught.value)
    assert said.startswith(f"{folder / 'aggregator.toml'}: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("text", "protocol", "mqtt"),
    [(EXAMPLE, Protocol.TCP, MqttOptions()), (OF_MQTT, Protocol.MQTT, MqttOptions("farm", "aggregator", "secret"))],
    ids=["as it is", "with a broker"],
)
def test_example_of_the_page_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, protocol: Protocol, mqtt: MqttOptions
) -> None:
    for name in ("server-key.pem", "server.pem", "authority.pem", "revoked.txt"):
        (tmp_path / name).write_text("PEM")
    (tmp_path / "broker-password").write_text("secret\n")
    (tmp_path / "page-password").write_text("open\n")
    for name in ("farm", "runs"):
        (tmp_path / name).mkdir()
    (tmp_path / "farm" / "model.py").write_text(
        "from tests.fl.federation import zeros as initial\nmeasure = dict\n" + WATCH
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = load(tmp_path, text)
    assert config.protocol is protocol
    assert config.options.netloc == NetworkLocation("0.0.0.0", 51966)
    assert config.rounds == 100
    assert config.settings == {
        "min_clients": 4,
        "patience": fl.Patience(
            deadline=600.0, grace=10.0, close_early=True, suspend_after=3, void_rounds=10, void_pause=1.0
        ),
        "evaluate": True,
        "memory_limit": 4 * 10**9,
        "relays": ["relay-north"],
        "wait": 6,
        "roles": {"head.*": "local"},
        **(
            {
                "secure": fl.SecureAggregation(metrics=("loss",)),
                "privacy": fl.DifferentialPrivacy(1.0, 4.0, max_epsilon=8.0, quantile=0.5),
            }
            if mqtt != MqttOptions()
            else {}
        ),
    }
    assert config.checkpoint == tmp_path / "federation.ckpt"
    assert config.initial()["w"].tolist() == [0.0] * 3
    assert config.measure is not None
    assert config.save == tmp_path / "model.npz"
    assert type(config.strategy) is fl.FedAdam
    assert config.strategy.compression == fl.Compression("int8", zstd=3)
    assert config.strategy.discount(3) == 0.5
    assert resolved(config.strategy.config(1), 100) == {"epochs": 2, "lr": pytest.approx(0.001)}
    assert config.save_best == {"path": tmp_path / "model-best.npz", "metric": "server_accuracy"}
    assert config.stop_early == {"metric": "server_accuracy", "patience": 10, "min_delta": 0.001}
    assert config.strategy.enough(10) == 5
    assert config.options.security == SecurityOptions(
        key=tmp_path / "server-key.pem",
        certificate=tmp_path / "server.pem",
        authority=tmp_path / "authority.pem",
        revoked=tmp_path / "revoked.txt",
    )
    if mqtt != MqttOptions():  # these tables are comments in the file on the page
        assert config.options.seal == SealOptions(
            key=tmp_path / "server-key.pem",
            certificate=tmp_path / "server.pem",
            authority=tmp_path / "authority.pem",
            revoked=tmp_path / "revoked.txt",
        )
    assert config.options.mqtt == mqtt
    assert config.options.connection == ConnectionOptions(heartbeat=30.0)
    (make,) = config.callbacks.own
    assert type(make()).__name__ == "Watch"
    page: dict[str, Any] = {"host": "127.0.0.1", "port": 8080}
    if mqtt != MqttOptions():
        page["security"] = SecurityOptions(
            tmp_path / "server-key.pem", tmp_path / "server.pem", tmp_path / "authority.pem"
        )
        page["password"] = "open"
    options = CallbackOptions(
        own=config.callbacks.own,
        page=page,
        progress=True,
        json=tmp_path / "rounds.jsonl",
        client_metrics=True,
        tensorboard=tmp_path / "runs" / "farm",
        prometheus=("127.0.0.1", 9100),
        mlflow="http://localhost:5000",
    )
    assert config.callbacks == options


def test_example_of_the_page_has_every_key() -> None:
    example = tomllib.loads(OF_MQTT)
    assert set(example) == set(KEYS)
    for table in ("server", "model", "security", "seal", "callbacks", "page"):
        assert set(example[table]) == set(KEYS[table] or ())


def test_values_of_the_clients_config_may_be_schedules(tmp_path: Path) -> None:
    table = '[strategy]\nconfig = { epochs = 2, lr = { schedule = "linear", start = 1.0, end = 0.0, rounds = 3 } }\n'
    config = load(tmp_path, LEAST + table).strategy.config(2)
    assert (config["epochs"], config["lr"](2)) == (2, 0.5)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('"server_accuracy"', {"metric": "server_accuracy"}),
        ('{ metric = "server_loss", lowest = true }', {"metric": "server_loss", "lowest": True}),
        ('{ metric = "accuracy", of = "median" }', {"metric": "accuracy", "of": "median"}),
    ],
)
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_best_model_is_written_next_to_the_last(
    tmp_path: Path, text: str, arguments: dict[str, Any], suffix: str
) -> None:
    config = load(tmp_path, LEAST + f'save = "model.{suffix}"\nsave_best = {text}\n')
    assert config.save_best == {"path": tmp_path / f"model-best.{suffix}", **arguments}
    assert config.simulated().save_best["path"] == tmp_path / f"simulated-model-best.{suffix}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LEAST + 'save_best = "accuracy"\n', "model.save_best: needs model.save"),
        (LEAST + '[roles]\n"head.*" = "mine"\n', "roles.head.*: 'mine'; expected one of trained, averaged, unit"),
        (LEAST + '[roles]\nhead.w = "local"\n', "roles.head: {'w': 'local'}; expected one of trained, averaged"),
        (LEAST + 'save = "m.npz"\nsave_best = 3\n', 'model.save_best: 3; expected a metric, as in "server_accuracy"'),
        (LEAST + 'save = "m.npz"\nsave_best = { metric = "" }\n', "model.save_best: metric: ''; expected a name"),
        (LEAST + 'save = "m.npz"\nsave_best = { lowest = true }\n', "model.save_best: {'lowest': True}; expected"),
        (STOPPING.format("3"), "server.stop_early: 3; expected a table of metric, patience, min_delta, lowest"),
        (STOPPING.format("{ patience = 3 }"), "server.stop_early: {'patience': 3}; expected a table of metric"),
        (STOPPING.format('{ metric = "a", patience = 0 }'), "server.stop_early: patience: 0; expected a whole number"),
        (STOPPING.format('{ metric = "a", of = "max" }'), 'server.stop_early: of: \'max\'; expected "mean", "median"'),
        (
            LEAST + '[strategy]\nconfig = { lr = { schedule = "linea" } }\n',
            "strategy.config.lr: schedule: 'linea'; did you mean linear?",
        ),
    ],
)
def test_wrong_values_of_what_is_watched(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)


def test_minimal_file_loads(tmp_path: Path) -> None:
    config = load(tmp_path, LEAST)
    assert (config.protocol, config.settings, config.checkpoint) == (Protocol.TCP, {}, None)
    assert (config.measure, config.save, config.options.security) == (None, None, None)
    assert type(config.strategy) is fl.FedAvg
    assert config.callbacks == CallbackOptions()


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_can_be_named(tmp_path: Path, name: str) -> None:
    config = load(tmp_path, f'{LEAST}[strategy]\nname = "{name}"\nfraction = 0.5\nseed = 7\n')
    assert type(config.strategy) is getattr(fl, name)
    assert config.strategy.enough(4) == 2


def test_own_strategy_gets_its_own_options(tmp_path: Path) -> None:
    text = f'{LEAST}[strategy]\nname = "{__name__}:Own"\nbound = 3.0\noversample = 0.5\n'
    strategy: Any = load(tmp_path, text).strategy
    assert type(strategy).__name__ == "Own"
    assert strategy.bound == 3.0


@pytest.mark.parametrize(
    ("text", "staleness", "discount"),
    [("polynomial", 3, 0.5), ("polynomial(1)", 3, 0.25), ("hinge( 2, 1 )", 3, 0.2), ("hinge", 4, 1.0)],
)
def test_staleness_is_read_from_text(tmp_path: Path, text: str, staleness: int, discount: float) -> None:
    strategy = load(tmp_path, f'{LEAST}[strategy]\nstaleness = "{text}"\n').strategy
    assert strategy.discount(staleness) == discount


@pytest.mark.parametrize(
    ("table", "staleness", "discount"),
    [
        ('name = "polynomial"', 3, 0.5),
        ('name = "polynomial", exponent = 1', 3, 0.25),
        ('name = "hinge", slope = 2, bound = 1', 3, 0.2),
    ],
)
def test_staleness_is_a_table(tmp_path: Path, table: str, staleness: int, discount: float) -> None:
    strategy = load(tmp_path, f"{LEAST}[strategy]\nstaleness = {{ {table} }}\n").strategy
    assert strategy.discount(staleness) == discount


@pytest.mark.parametrize("masks", [False, True], ids=["at the server", "at the clients"])
def test_noise_is_found_for_the_rounds_of_the_file(tmp_path: Path, *, masks: bool) -> None:
    text = LEAST + "[privacy]\nclip = 2.0\ndelta = 1e-6\nmax_epsilon = 8.0\n" + "[secure]\n" * masks
    expected = fl.DifferentialPrivacy.for_rounds(2, 8.0, clip=2.0, delta=1e-6, masks=masks)
    assert load(tmp_path, text).settings["privacy"] == expected


@pytest.mark.parametrize("value", ['"int8, top_k=0.1"', '{ dtype = "int8", top_k = 0.1 }'], ids=["text", "table"])
def test_compression_is_a_table_or_a_text(tmp_path: Path, value: str) -> None:
    strategy = load(tmp_path, f"{LEAST}[strategy]\ncompression = {value}\n").strategy
    assert strategy.compression == fl.Compression("int8", 0.1)


def test_output_may_be_a_symlink_or_a_device(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "model.npz").symlink_to("far/model.npz")
    config = load(tmp_path, f"{LEAST}save = 'model.npz'\n[callbacks]\njson = '/dev/null'\n")
    assert config.save == tmp_path / "model.npz"
    assert config.callbacks.json == Path("/dev/null")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aggregator.toml", "far", "model.npz"]


def test_update_store_folder_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    strategy: Any = load(tmp_path, f'{LEAST}[strategy]\nname = "FedMedian"\nfolder = "spool"\n').strategy
    assert strategy._folder == tmp_path / "spool"


@pytest.mark.parametrize(
    ("value", "place"),
    [("9100", ("127.0.0.1", 9100)), ('"0.0.0.0:9100"', ("0.0.0.0", 9100)), ('"[::1]:0"', ("[::1]", 0))],
)
def test_prometheus_listens_on_loopback_by_default(tmp_path: Path, value: str, place: tuple[str, int]) -> None:
    assert load(tmp_path, f"{LEAST}[callbacks]\nprometheus = {value}\n").callbacks.prometheus == place


@pytest.mark.parametrize(
    ("text", "key", "expectation"),
    [
        ("[server\n", "not TOML", "correct it there"),
        ("[sever]\n", "[sever]", "did you mean [server]?"),
        ("server = 1\n", "server: 1", "expected a table: begin it with a line [server]"),
        ("[server]\nprot = 1\n", "server.prot: ", "did you mean server.port?"),
        ("[callbacks]\nbanana = 1\n", "callbacks.banana: ", "expected one of callbacks.progress"),
        ("[server]\nport = 1\n", "server.host: missing", "where to listen"),
        ('[server]\nhost = "a"\n', "server.port: missing", "a whole number from 1 to 65535"),
        ('[server]\nhost = "a"\nport = true\n', "server.port: True", "a whole number from 1 to 65535"),
        ('[server]\nhost = "a"\nport = 1\n', "server.rounds: missing", "a whole number, 1 or more"),
        ('[server]\nhost = "a"\nport = 1\nrounds = 0\n', "server.rounds: 0", "a whole number, 1 or more"),
        (SERVER, "model.initial: missing", '"module:function", as in "farm.model:initial"'),
        (SERVER + "[model]\ninitial = 'zeros'\n", "model.initial: 'zeros'", '"module:function"'),
        (SERVER + "[model]\ninitial = 'no.such:zeros'\n", "model.initial: ", "No module named 'no': correct the name"),
        (SERVER + "[model]\ninitial = 'tests.fl.federation:zero'\n", "has no zero", "did you mean zeros?"),
        (
            SERVER + "[model]\ninitial = 'tests.fl.federation:SOON'\n",
            "model.initial: ",
            "a function, and SOON is a float",
        ),
        (
            SERVER + "[model]\ninitial = 'tests.fl.federation:filled'\n",
            "model.initial: missing a",
            "called as initial()",
        ),
        (LEAST + "measure = 'tests.fl.federation:zeros'\n", "model.measure: too many", "called as measure(model)"),
        (LEAST + "measure = 1\n", "model.measure: 1", '"module:function"'),
        (LEAST + "save = 'none/model.npz'\n", "model.save: ", "there is no folder"),
        (LEAST + "save = 'model'\n", "model.save: ", "/model'; expected a name that ends in .npz or .safetensors"),
        (SERVER + "checkpoint = 7\n" + MODEL, "server.checkpoint: 7", "a path, seen from the folder of this file"),
        (SERVER + "checkpoint = '/'\n" + MODEL, "server.checkpoint: '/'", "a file, and this is a folder"),
        (SERVER + "checkpoint = '.'\n" + MODEL, "server.checkpoint: ", "a file, and this is a folder"),
        (SERVER + "checkpoint = '/proc/x'\n" + MODEL, "server.checkpoint: '/proc/x'; expected", "may be written to"),
        (SERVER + "checkpoint = '/dev/null'\n" + MODEL, "server.checkpoint: ", "may be others beside it"),
        (SERVER + f"checkpoint = '{'x' * 247}'\n" + MODEL, "server.checkpoint: ", "may be written to"),
        (SERVER + f"checkpoint = '{'x' * 300}'\n" + MODEL, "server.checkpoint: ", "may be written to"),
        (SERVER + f"checkpoint = '{'x' * 300}/x'\n" + MODEL, "server.checkpoint: ", "there is no folder"),
        (SERVER + 'checkpoint = "\\u0000"\n' + MODEL, "server.checkpoint: ", "may be written to"),
        (LEAST + "save = '.'\n", "model.save: ", "a file, and this is a folder"),
        (LEAST + "save = '/proc/x'\n", "model.save: '/proc/x'; expected", "may be written to"),
        (LEAST + "save = '/dev/null'\n", "model.save: '/dev/null'; expected", "may be written to"),
        (SERVER + "protocol = 'udp'\n" + MODEL, "server.protocol: 'udp'", '"tcp" or "mqtt"'),
        (SERVER + "min_clients = '2'\n" + MODEL, "server.min_clients: '2'", "a whole number"),
        (SERVER + "evaluate = 1\n" + MODEL, "server.evaluate: 1", "true, false, or a table, as in"),
        (
            SERVER + "evaluate = { fraction = 2.0 }\n" + MODEL,
            "server.evaluate.fraction: 2.0",
            "a number above 0, and 1",
        ),
        (SERVER + "evaluate = { fractoin = 0.2 }\n" + MODEL, "server.evaluate: 'fractoin'", "did you mean fraction?"),
        (SERVER + "deadline = true\n" + MODEL, "server.deadline: True", "seconds"),
        (LEAST + "[strategy]\nname = 'FedAdm'\n", "strategy.name: 'FedAdm'", "did you mean FedAdam?"),
        (LEAST + "[strategy]\nname = 'Strategy'\n", "strategy.name: 'Strategy'", "no such strategy"),
        (LEAST + "[strategy]\nname = 'builtins:int'\n", "strategy.name: 'builtins:int'", "a subclass of fl.Strategy"),
        (LEAST + "[strategy]\nname = 'FedAdam'\nbeta1 = 1\n", "strategy.beta1: FedAdam has no", "did you mean beta_1?"),
        (LEAST + "[strategy]\noptimizer = 1\n", "strategy.optimizer: FedAvg has no", "expected one of fraction"),
        (LEAST + "[strategy]\nfraction = 2\n", "strategy.fraction: 2;", "1 at most"),
        (LEAST + "[strategy]\nname = 'FedAdam'\nbeta_2 = 2\n", "strategy.beta_2: 2;", "expected"),
        (LEAST + "[strategy]\nname = 'Krum'\nkeep = 2\n", "strategy.keep: Krum has no such option", "byzantine"),
        (LEAST + f"[strategy]\nname = '{__name__}:Needs'\n", "strategy: ", "'bound'; see docs/reference/strategies.md"),
        (LEAST + "[strategy]\nconfig = 3\n", "strategy.config: 3; expected a table", "{ epochs = 2 }"),
        (LEAST + "[strategy]\nconfig = { day = 1979-05-27 }\n", "strategy.config: ", "'day'"),
        (LEAST + "[strategy]\nconfig = 'ab'\n", "strategy.config: 'ab'; expected a table", "{ epochs = 2 }"),
        (LEAST + "[strategy]\nname = 'FedYogi'\nadaptivity = 1e308\n", "strategy.adaptivity: 1e+308;", "at most"),
        (LEAST + "[strategy]\nseed = 'a'\n", "strategy.seed: 'a'; expected", "a whole number"),
        (LEAST + "[strategy]\nseed = true\n", "strategy.seed: True; expected", "a whole number"),
        (LEAST + "[strategy]\nname = 'Krum'\nfolder = '/nope'\n", "strategy.folder: '/nope'; expected", "is there"),
        (LEAST + "[strategy]\ncompression = 'int9'\n", "strategy.compression: dtype: 'int9'", "int8"),
        (LEAST + "[strategy]\ncompression = 8\n", "strategy.compression: 8; expected", '"none", or a dtype'),
        (LEAST + "[strategy]\ncompression = { dtype = 'int9' }\n", "strategy.compression: dtype: 'int9'", "int8"),
        (LEAST + "[strategy.compression]\nd_type = 'int8'\n", "strategy.compression: there is no", "mean dtype?"),
        (
            LEAST + "[strategy]\nname = 'Krum'\nstaleness = 'hinge'\n",
            "strategy.staleness: expected None",
            "leave the option",
        ),
        (LEAST + "[strategy]\nname = ':Mine'\n", "strategy.name: ':Mine'", 'as in "farm.strategies:Mine"'),
        (LEAST + "[strategy]\nstaleness = 0.5\n", "strategy.staleness: 0.5", '"polynomial(0.5)" or "hinge(10, 4)"'),
        (LEAST + "[strategy]\nstaleness = 'linear(1)'\n", "strategy.staleness: ", '"polynomial(0.5)"'),
        (LEAST + "[strategy]\nstaleness = { exponent = 1 }\n", "strategy.staleness: {'exponent': 1}", "expected"),
        (LEAST + "[strategy.staleness]\nname = 'hinge'\nbond = 4\n", "strategy.staleness: ", "'bond'; see fl.hinge"),
        (LEAST + "[strategy]\nstaleness = 'polynomial(-1)'\n", "strategy.staleness: ", "see fl.polynomial"),
        (LEAST + "[strategy]\nstaleness = 'hinge(1, 2, 3)'\n", "strategy.staleness: ", "see fl.hinge"),
        (LEAST + "[security]\nkey = 'none.pem'\n", "security.key: 'none.pem'", "a PEM file"),
        (SERVER + "protocol = 'mqtt'\n" + MODEL + "[mqtt]\nprefix = ''\n", "mqtt.prefix: ''", "1 to 128 characters"),
        (LEAST + "[mqtt]\n", '[mqtt]: server.protocol is "tcp"', 'say protocol = "mqtt", or leave the table out'),
        (LEAST + "[connection]\nheartbeat = 0\n", "connection.heartbeat: 0", "seconds"),
        (LEAST + "[callbacks]\nprogress = 1\n", "callbacks.progress: 1", "true or false"),
        (
            LEAST + "[callbacks]\nprometheus = 65536\n",
            "callbacks.prometheus: 65536",
            'a port, as in 9100, or "host:port"',
        ),
        (LEAST + "[callbacks]\nprometheus = true\n", "callbacks.prometheus: True", "a port, as in 9100"),
        (LEAST + "[callbacks]\nprometheus = ':9100'\n", "callbacks.prometheus: ':9100'", "a port, as in 9100"),
        (LEAST + "[callbacks]\njson = 'none/rounds.jsonl'\n", "callbacks.json: ", "there is no folder"),
        (LEAST + "[callbacks]\njson = '/proc/x'\n", "callbacks.json: '/proc/x'; expected", "may be written to"),
        (
            LEAST + "[callbacks]\ntensorboard = '/proc/x'\n",
            "callbacks.tensorboard: '/proc/x'; expected",
            "may be written",
        ),
        (LEAST + "[callbacks]\njson = '.'\n", "callbacks.json: ", "expected a file, and this is a folder"),
        (
            LEAST + "[callbacks]\ntensorboard = 'aggregator.toml'\n",
            "callbacks.tensorboard: ",
            "expected a folder, and there is",
        ),
        (LEAST + "[callbacks]\nmlflow = 5000\n", "callbacks.mlflow: 5000", "the address of an MLflow server"),
        (LEAST + "[callbacks]\nmlflow = 'mlruns'\n", "callbacks.mlflow: 'mlruns'", 'as in "http://localhost:5000"'),
        (
            LEAST + "[callbacks]\nmlflow = 'sqlite:///ml.db'\n",
            "callbacks.mlflow: 'sqlite:///ml.db'",
            "the address of an",
        ),
        (LEAST + "[callbacks]\nmlflow = 'http://'\n", "callbacks.mlflow: 'http://'", "the address of an MLflow server"),
        (LEAST + "[privacy]\nmax_epsilon = 8.0\n", "privacy.clip: missing", "a number above 0"),
        (
            LEAST + "[privacy]\nclip = 1.0\n",
            "privacy.noise_multiplier: missing",
            "or max_epsilon, for which it is found",
        ),
        (LEAST + "[privacy]\nclip = 0\nmax_epsilon = 8.0\n", "privacy.clip: 0", "noise only"),
        (LEAST + "[privacy]\nclip = 1.0\nmax_epsilon = 'a'\n", "privacy.max_epsilon: 'a'", "a number above 0"),
        (
            LEAST + "[privacy]\nclip = 1.0\ndelta = 1e-30\nmax_epsilon = 1e-9\n",
            "privacy.max_epsilon: 1e-09",
            "fewer rounds, or more",
        ),
    ],
)
def test_wrong_values_are_named_with_what_was_expected(tmp_path: Path, text: str, key: str, expectation: str) -> None:
    said = refusal(tmp_path, text)
    assert key in said
    assert expectation in said


def test_missing_folders_are_named_at_once(tmp_path: Path) -> None:
    more = "save = 'out/m.npz'\n[callbacks]\ntensorboard = 'runs/a'\njson = 'rounds.jsonl'\n"
    said = refusal(tmp_path, SERVER + "checkpoint = 'state/x.ckpt'\n" + MODEL + more)
    folders = [f"there is no folder '{tmp_path / name}': make it" for name in ("state", "out", "runs")]
    assert [said.count(each) for each in folders] == [1, 1, 1]


def test_zstd_without_zstandard_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    said = refusal(tmp_path, f'{LEAST}[strategy]\ncompression = "int8, zstd=3"\n')
    assert "strategy.compression: 'int8, zstd=3'; zstd needs zstandard: pip install " in said


def test_error_of_initial_is_kept_as_cause(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption) as caught:
        load(tmp_path, f"{SERVER}[model]\ninitial = '{__name__}:raises'\n").server()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"none\.toml: no such file; give the path of the aggregator's TOML file"):
        Config.load(tmp_path / "none.toml")
    with pytest.raises(InvalidOption, match="cannot be read"):
        Config.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidOption, match="not UTF-8 at byte 0"):
        Config.load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SERVER + "min_clients = 0\n" + MODEL, "server.min_clients: 0; expected 1 or more"),
        (SERVER + "memory_limit = 1\n" + MODEL, "server.memory_limit: 1; expected 36 bytes, three models, at least"),
        (f"{SERVER}[model]\ninitial = '{__name__}:a_list'\n", "model.initial: returned a list; expected a dict"),
        (f"{SERVER}[model]\ninitial = '{__name__}:of_text'\n", "model.initial: "),
        (
            f"{SERVER}[model]\ninitial = '{__name__}:raises'\n",
            f"model.initial: {__name__}:raises raised RuntimeError: no disk; --verbose shows the traceback",
        ),
        (f"{SERVER}protocol = 'shm'\n{MODEL}[security]\n", "[security]: shared memory takes none"),
    ],
)
def test_errors_of_the_server_name_the_key(tmp_path: Path, text: str, said: str) -> None:
    config = load(tmp_path, text)
    with pytest.raises(InvalidOption) as caught:
        config.server()
    assert str(caught.value).startswith(f"{tmp_path / 'aggregator.toml'}: {said}")


HERE = __name__


@pytest.mark.parametrize("name", ["Counts", "COUNTS"])
def test_own_callback_is_a_class_or_an_object(tmp_path: Path, name: str) -> None:
    (make,) = load(tmp_path, f'{LEAST}[callbacks]\nown = ["{HERE}:{name}"]\n').callbacks.own
    assert isinstance(make(), Counts)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FailsToBegin", "raised OSError: no such project"),
        ("a_list", "gives list; expected a class that inherits from fl.Callback"),
    ],
)
def test_own_callback_that_cannot_be_made_is_named(tmp_path: Path, name: str, said: str) -> None:
    (make,) = load(tmp_path, f'{LEAST}[callbacks]\nown = ["{HERE}:{name}"]\n').callbacks.own
    with pytest.raises(InvalidOption, match=f"callbacks.own: '{HERE}:{name}' {said}"):
        make()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("own = 3", "callbacks.own: 3; expected a list"),
        ("own = ['nowhere:x']", "callbacks.own: 'nowhere:x'"),
        ("page = '0.0.0.0:80'", "others can reach it"),
        ("page = 70000", "callbacks.page: 70000; expected a port, as in 8080"),
        ("page = 80\n[page]\npassword_file = 'none'", "page.password_file: 'none'"),
        ("page = 80\n[page]\nport = 3", "page.port: no such key"),
        ("[page]\nkey = 'x'", "[page]: needs callbacks.page"),
    ],
)
def test_wrong_callbacks_are_named(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, f"{LEAST}[callbacks]\n{text}\n")


@pytest.mark.parametrize("name", ["w.ckpt", "w.ckpt.previous"])
def test_server_resumes_from_the_checkpoint_or_its_backup(tmp_path: Path, name: str) -> None:
    with Running(checkpoint=tmp_path / "w.ckpt") as federation:
        federation.join(A, adds(2))
        federation.join(B, adds(4))
        federation.round(2)
    (tmp_path / "w.ckpt").rename(tmp_path / name)
    with load(tmp_path, f'{SERVER}checkpoint = "w.ckpt"\n{MODEL}').server() as server:
        assert server.number == 1
        assert server.model["w"].tolist() == filled(3)["w"].tolist()


def test_server_gets_address_and_options(tmp_path: Path) -> None:
    with load(tmp_path, f"{SERVER}min_clients = 1\n{MODEL}[connection]\nlinger = 0.1\n").server() as server:
        assert server.netloc.host == "127.0.0.1"
        assert at(server.netloc).netloc.port == server.netloc.port != 0


def test_a_simulation_writes_files_of_its_own(tmp_path: Path) -> None:
    more = "save = 'model.npz'\n[callbacks]\njson = 'rounds.jsonl'\ntensorboard = 'board'\n"
    simulated = load(tmp_path, LEAST + more).simulated()
    assert simulated.save == tmp_path / "simulated-model.npz"
    assert simulated.callbacks.json == tmp_path / "simulated-rounds.jsonl"
    assert simulated.callbacks.tensorboard == tmp_path / "simulated-board"
    simulated = load(tmp_path, f"{LEAST}[callbacks]\njson = '/dev/null'\n").simulated()
    assert (simulated.save, simulated.callbacks.json) == (None, Path("/dev/null"))


@pytest.mark.parametrize("name", [name for name in KEYS if name not in ("connection", "mqtt")])  # "any field of"
def test_every_key_of_a_table_is_in_the_example_of_the_page(name: str) -> None:
    text = re.sub(r"^# (?=[a-z_\[])", "", EXAMPLE, flags=re.MULTILINE)
    tables = dict(re.findall(r"^\[(\w+)\]((?:.(?!^\[))*)", text, re.MULTILINE | re.DOTALL))
    assert [key for key in KEYS[name] or () if not re.search(rf"^{key} =", tables[name], re.MULTILINE)] == []


def test_every_key_of_a_json_line_is_on_the_page() -> None:
    keys = record(fl.RoundReport(1, (), {}, {}, {}, 0.0, 0, 0), client_metrics=True)
    assert [key for key in keys if f"`{key}`" not in PAGE.text] == []
