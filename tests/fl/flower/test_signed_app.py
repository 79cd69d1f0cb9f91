"""Delivery of an app's files: a node runs what its authors have signed, and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import netq
from fl.flower.app_folder import AppFolder
from fl.flower.envelope import Failure, Fetch
from fl.flower.messages import Files
from fl.flower.signed_app import NAME, ReceivedApps, SignedApp, sign
from netq.testing.log import LogRecorder
from tests.attacks.files import APPS, run
from tests.fl.flower.author import Author
from tests.fl.flower.federation import Federation, error_of

pytestmark = pytest.mark.usefixtures("modules_are_forgotten")


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path)


def value_of(reply: Any) -> Any:
    assert not reply.has_error(), reply.error
    return reply.content["it"]["value"]


@pytest.mark.parametrize("algorithm", ["p256", "ml-dsa-65"])
def test_node_runs_the_apps_of_one_server_after_another(tmp_path: Path, algorithm: str) -> None:
    """The second app has modules of the same names."""
    author = Author(tmp_path, algorithm=algorithm)
    board = author.board()
    for add, value in ((1, 10), (2, 20), (1, 10)):
        with Federation(delivery=author.signed(add, value=value)) as federation:
            id = federation.join(board)
            assert [value_of(federation.query(id)[id]) for _ in range(2)] == [value + add] * 2
    assert len(os.listdir(tmp_path / "apps")) == 2


def test_app_is_sent_once(author: Author, log: LogRecorder) -> None:
    for _ in range(2):  # the second time with a new process's memory, and the same folder
        with Federation(delivery=author.signed(1)) as federation:
            id = federation.join(author.board())
            assert value_of(federation.query(id)[id]) == 1
    assert len(log.having("is sent the app's files")) == 1


def test_server_that_does_not_deliver_is_named(author: Author) -> None:
    with Federation(app_version=author.app(1).version) as federation:
        id = federation.join(author.board())
        error = error_of(federation.query(id)[id])
    assert "the server does not deliver it; start it with --deliver" in str(error.reason)


def test_app_of_another_author_does_not_run(author: Author) -> None:
    other = Author(author.folder, "other")
    with Federation(delivery=other.signed(1)) as federation:
        id = federation.join(author.board())
        error = error_of(federation.query(id)[id])
    assert "author.pem has signed it" in str(error.reason)
    assert os.listdir(author.folder / "apps") == []


def test_error_of_a_module_is_the_reply(author: Author) -> None:
    with Federation(delivery=author.signed(1, module="import no_such_module\n{0}")) as federation:
        id = federation.join(author.board())
        error = error_of(federation.query(id)[id])
    assert "no_such_module" in str(error.reason)


def test_app_that_cannot_be_imported_leaves_no_modules_to_the_next(author: Author) -> None:
    board = author.board()
    board.store(broken := author.signed(1, value=10, module="from farm.task import value, absent\n{0}"))
    with pytest.raises(netq.InvalidOption, match="absent"):
        board.client_app(broken.version)
    board.store(whole := author.signed(1, value=20))
    assert board.client_app(whole.version) is not None
    assert sys.modules["farm.task"].value == 20


def test_each_change_after_signing_is_refused(author: Author) -> None:
    app = author.signed(1)
    board = author.board()
    name = "farm/task.py"
    changed = {
        "another content": {**app.files, name: b"value = 1\n"},
        "a file more": {**app.files, "farm/more.py": b""},
        "a file less": {path: data for path, data in app.files.items() if path != name},
        "another name": {("farm/tusk.py" if path == name else path): data for path, data in app.files.items()},
        "the project": {**app.files, "pyproject.toml": app.files["pyproject.toml"].replace(b"client", b"server")},
    }
    for what, files in changed.items():
        with pytest.raises(netq.SecurityError, match=r"no certificate in .* has signed it"):
            board.store(app._replace(files=files))
        assert os.listdir(author.folder / "apps") == [], what
    flipped = bytes([app.signature[-1] ^ 1])
    with pytest.raises(netq.SecurityError, match="has signed it"):
        board.store(app._replace(signature=app.signature[:-1] + flipped))
    with pytest.raises(netq.SecurityError, match="its files are those of"):
        board.store(app._replace(version="0" * 16))


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../x.py",
            "/x.py",
            "a/../../x.py",
            ".hidden/x.py",
            "a//x.py",
            "a\\x.py",
            "x.so",
            "x.pth",
            "a/\0.py",
            "",
            "a\n.py",
        ),
        *("__pycache__/x.py", "a/pyproject.toml", "x" * 200 + ".py"),
    ],
)
def test_path_outside_the_app_is_refused(author: Author, path: str) -> None:
    app = author.signed(1)
    before = sorted(author.folder.rglob("*"))
    board = author.board()
    with pytest.raises(netq.SecurityError, match="expected the path of a Python file in the app's folder"):
        board.store(app._replace(files={**app.files, path: b"1"}))
    assert sorted(author.folder.rglob("*")) == sorted([*before, author.folder / "apps"])


def test_size_is_bounded(author: Author) -> None:
    app = author.signed(1)
    with pytest.raises(netq.SecurityError, match="more than 1,000 files or 16 MiB"):
        author.board().store(app._replace(files={**app.files, "big.py": bytes(16 * 2**20)}))
    (author.folder / "app" / "big.py").write_bytes(bytes(16 * 2**20))
    with pytest.raises(netq.InvalidOption, match=r"app: cannot be delivered: it has more than 1,000 files or 16 MiB"):
        sign(AppFolder.load(author.folder / "app"), author.files.key)


def test_folder_on_the_board_is_checked_again(author: Author) -> None:
    app = author.signed(1)
    author.board().store(app)
    stored = author.folder / "apps" / app.version / "farm" / "task.py"
    stored.write_text("value = 5\n")
    with pytest.raises(netq.SecurityError, match="has changed since it was signed"):
        author.board().client_app(app.version)
    with Federation(delivery=app) as federation:  # and mended by the next delivery
        id = federation.join(author.board())
        assert value_of(federation.query(id)[id]) == 1


def test_another_signed_version_is_not_the_one_that_is_asked_for(author: Author, log: LogRecorder) -> None:
    board = author.board()
    new, old = author.signed(2), author.signed(1)
    board.store(old)
    stored = (author.folder / "apps" / old.version).rename(author.folder / "apps" / new.version)
    assert not board.has(new.version)
    assert log.having(f"{new.version} is refused: its files are those of {old.version}")
    with pytest.raises(netq.SecurityError, match=f"its files are those of {old.version}"):
        board.client_app(new.version)
    assert "farm.app" not in sys.modules
    assert not stored.exists()


def test_old_versions_are_removed(author: Author) -> None:
    board = author.board()
    versions = []
    for number in range(6):
        app = author.signed(number)
        board.store(app)
        os.utime(author.folder / "apps" / app.version, (number, number))
        versions.append(app.version)
    assert set(os.listdir(author.folder / "apps")) == set(versions[-4:])


def test_version_names_no_other_folder(author: Author) -> None:
    board = author.board()
    assert [board.client_app(version) for version in ("", ".", "..", "../app", "a" * 100)] == [None] * 5


def test_files_for_which_no_node_asked_are_dropped(author: Author, log: LogRecorder) -> None:
    app = author.signed(1)
    with Federation() as federation:
        id = federation.join(author.board())
        peer = next(iter(federation.grid._dispatcher.queue.statistics()))
        federation.grid._dispatcher.queue.put(Files(*app), peer).result(20)
        assert "does not deliver" in str(error_of(federation.query(id)[id]).reason)
    assert log.having("for which this node did not ask")
    assert os.listdir(author.folder / "apps") == []


def test_node_that_asks_for_ever_gets_one_answer_at_a_time(author: Author) -> None:
    """Forty requests before a reply are one delivery, or a few. A hundred may cut the node off."""
    app, got = author.signed(1), []

    def answer(message: Any) -> Any:
        if message["type"] == "Files":
            got.append(message)
            return []
        return [*[Fetch(app.version)] * 40, Failure(message["batch"], "no", 1)]

    with Federation(delivery=app) as federation:
        id = federation.join_raw(answer)
        assert error_of(federation.query(id)[id]).code == 1
    assert 1 <= len(got) < 40


@pytest.mark.parametrize(
    ("text", "problem"),
    [(b"", "not enough values"), (b"sha256 00\nsignature !\n", "no signature of an app"), (b"\xff", "ascii")],
)
def test_signature_that_is_none_says_what_to_run(author: Author, text: bytes, problem: str) -> None:
    app = author.app(1)
    with pytest.raises(netq.InvalidOption, match=r"app: this app is not signed; run: fl flower sign .*app KEY\.pem"):
        SignedApp.load(app)
    (app.path / NAME).write_bytes(text)
    with pytest.raises(netq.InvalidOption, match=problem):
        SignedApp.load(app)


def test_app_that_has_changed_must_be_signed_again(author: Author) -> None:
    author.signed(1)
    app = author.app(2)
    with pytest.raises(netq.InvalidOption, match="has changed since it was signed; run: fl flower sign"):
        SignedApp.load(app)
    sign(app, author.files.key)
    assert SignedApp.load(app).version == app.version


def test_wrong_key_and_certificate_are_named(author: Author) -> None:
    with pytest.raises(netq.SecurityError, match=r"KEY\.pem: .*no private key in PEM"):
        sign(author.app(1), author.files.certificate)
    with pytest.raises(netq.SecurityError, match=r"app\.signer: .*no certificate in PEM"):
        ReceivedApps(author.folder / "apps", author.files.key)
    assert not (author.folder / "apps").exists()


@pytest.mark.slow
@pytest.mark.parametrize("attack", APPS)
def test_only_the_checked_bytes_of_a_stored_app_run(attack: str) -> None:
    found = run(attack)
    assert found.came_through == ""
    assert found.honest == "7" or "this app has changed since it was signed" in found.honest
