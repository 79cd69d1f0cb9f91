"""The folder of an authority: its files, who may read them, and what `show` finds wrong."""

from __future__ import annotations

import base64
import datetime
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netq.errors import SecurityError
from netq.security import authority, certificates
from netq.security.authority import CertificateKind
from netq.security.certificates import Entry, Files, init, issue, request, revoke, show, sign

OWN = ("authority-key.pem", "authority.pem", "server-key.pem", "server.pem")


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    init(tmp_path / "certificates")
    return tmp_path / "certificates"


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def entry(folder: Path, name: str) -> Entry:
    (found,) = [each for each in show(folder) if each.name == name]
    return found


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_init_writes_five_files(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert init(folder) == Files(*(folder / name for name in ("authority.pem", "server-key.pem", "server.pem")))
    assert sorted(path.name for path in folder.iterdir()) == sorted([*OWN, "revoked.txt"])
    signer, server = show(folder)
    assert (signer.kind, signer.problems, server.kind, server.problems) == (
        CertificateKind.AUTHORITY,
        (),
        CertificateKind.SERVER,
        (),
    )
    assert server.hosts == ("localhost", "127.0.0.1", "::1")


def test_issue_makes_three_files_for_a_client(folder: Path) -> None:
    files = issue(folder, "board-7", days=2)
    assert files == Files(*(folder / name for name in ("authority.pem", "board-7-key.pem", "board-7.pem")))
    client = entry(folder, "board-7")
    assert (client.kind, client.hosts, client.has_key, client.revoked, client.problems) == (
        CertificateKind.CLIENT,
        (),
        True,
        False,
        (),
    )
    assert isinstance(client.id, uuid.UUID)
    assert client.until is not None
    assert (client.until - datetime.datetime.now(datetime.UTC)).days == 1


def test_each_certificate_has_its_own_id_and_serial(folder: Path) -> None:
    for name in "ab":
        issue(folder, name)
    _, server, *clients = show(folder)
    assert len({each.id for each in (server, *clients)}) == len({each.serial for each in (server, *clients)}) == 3


def test_issue_with_hosts_makes_a_server(folder: Path) -> None:
    issue(folder, "relay", ["relay.local", "10.0.0.9"])
    relay = entry(folder, "relay")
    assert (relay.kind, relay.hosts, relay.problems) == (CertificateKind.SERVER, ("relay.local", "10.0.0.9"), ())


def test_only_the_owner_can_read_keys(tmp_path: Path, no_umask: None) -> None:
    init(tmp_path)
    issue(tmp_path, "board")
    issue(tmp_path, "board", renew=True)
    revoke(tmp_path, "board")
    modes = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert {name for name in modes if modes[name] == 0o600} == {
        f"{each}-key.pem" for each in ("authority", "server", "board")
    }
    assert {name for name in modes if modes[name] == 0o644} == {
        "authority.pem",
        "server.pem",
        "board.pem",
        "revoked.txt",
    }


def test_only_the_owner_can_read_a_key_from_the_first_byte(tmp_path: Path, no_umask: None) -> None:
    with pytest.raises(TypeError):  # after a failed write, the file is as it was created
        certificates._create(tmp_path / "key.pem", "no bytes", 0o600)  # type: ignore[arg-type]
    assert mode(tmp_path / "key.pem") == 0o600


@pytest.mark.parametrize("name", OWN)
def test_init_keeps_existing_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(SecurityError, match=f"{name} exists and is left as it is; .* overwrite"):
        init(tmp_path)
    assert content(tmp_path) == {name: b"precious"}


def test_overwrite_replaces_all_but_the_list(folder: Path, no_umask: None) -> None:
    issue(folder, "board")
    revoke(folder, "board")
    (folder / "server-key.pem").chmod(0o644)
    before = content(folder)
    init(folder, overwrite=True)
    after = content(folder)
    assert {name for name in before if before[name] == after[name]} == {"board.pem", "board-key.pem", "revoked.txt"}
    assert mode(folder / "server-key.pem") == 0o600
    (problem,) = entry(folder, "board").problems
    assert problem.startswith(f"{folder / 'board.pem'}: authority.pem has not signed it; renew it")


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "server-key.pem").symlink_to(tmp_path / "theirs.pem")
    with pytest.raises(SecurityError, match="exists"):
        init(tmp_path / "here")
    files = init(tmp_path / "here", overwrite=True)
    assert not files.key.is_symlink()
    assert not (tmp_path / "theirs.pem").exists()


def test_file_created_during_the_check_is_kept(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("theirs")
    with pytest.raises(FileExistsError):
        certificates._create(tmp_path / "key.pem", b"ours", 0o600)
    assert (tmp_path / "key.pem").read_text() == "theirs"


def test_failed_replacement_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "revoked.txt").write_text("old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        certificates._replace(tmp_path / "revoked.txt", b"new", 0o644)
    assert content(tmp_path) == {"revoked.txt": b"old"}


def test_issue_keeps_existing_files(folder: Path) -> None:
    issue(folder, "board")
    before = content(folder)
    with pytest.raises(SecurityError, match=r"board-key\.pem exists and is left as it is; .* renew"):
        issue(folder, "board")
    assert content(folder) == before


def test_renewed_certificate_keeps_the_id(folder: Path) -> None:
    issue(folder, "board", days=1)
    old, key = entry(folder, "board"), (folder / "board-key.pem").read_bytes()
    issue(folder, "board", days=9, renew=True)
    new = entry(folder, "board")
    assert new.id == old.id
    assert new.serial != old.serial
    assert new.until is not None
    assert old.until is not None
    assert new.until > old.until
    assert new.problems == ()
    assert (folder / "board-key.pem").read_bytes() != key
    assert len(content(folder)) == 7  # no temporary file is left


def test_renewed_server_keeps_its_hosts_or_gets_others(folder: Path) -> None:
    old = entry(folder, "server")
    issue(folder, "server", renew=True)
    assert (entry(folder, "server").id, entry(folder, "server").hosts) == (old.id, old.hosts)
    issue(folder, "server", ["a.local"], renew=True)
    assert (entry(folder, "server").id, entry(folder, "server").hosts) == (old.id, ("a.local",))


def test_renewal_without_the_old_key(folder: Path) -> None:
    issue(folder, "board").key.unlink()  # it was moved to the device
    issue(folder, "board", renew=True)
    assert entry(folder, "board").has_key


def test_client_does_not_become_a_server(folder: Path) -> None:
    issue(folder, "board")
    with pytest.raises(SecurityError, match=r"board\.pem: of a client, which has no hosts"):
        issue(folder, "board", ["a.local"], renew=True)


def test_nothing_to_renew(folder: Path) -> None:
    with pytest.raises(SecurityError, match=r"board\.pem: no such file"):
        issue(folder, "board", renew=True)


def test_certificate_without_an_id_is_not_renewed(folder: Path) -> None:
    (folder / "root.pem").write_bytes((folder / "authority.pem").read_bytes())
    with pytest.raises(SecurityError, match=r"root\.pem: names no id"):
        issue(folder, "root", renew=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "authority", "board-key", "ü", "a" * 65, "a\n"])
def test_invalid_names(folder: Path, name: str) -> None:
    before = content(folder)
    for call in (issue, revoke):
        with pytest.raises(SecurityError, match="expected 1 to 64 letters"):
            call(folder, name)
    assert content(folder) == before


@pytest.mark.parametrize("hosts", [[], "localhost"])
def test_hosts_that_are_no_list_are_refused(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(SecurityError, match="expected a list of names and addresses"):
        init(tmp_path / "new", hosts=hosts)
    assert not (tmp_path / "new").exists()


def test_issue_refuses_hosts_that_are_no_list(folder: Path) -> None:
    with pytest.raises(SecurityError, match="expected a list of names and addresses"):
        issue(folder, "relay", "relay.local")


def test_unknown_algorithm(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="algorithm: 'rsa'; expected p256 or ml-dsa-65"):
        init(tmp_path, algorithm="rsa")


def test_ml_dsa_in_the_whole_folder(tmp_path: Path) -> None:
    init(tmp_path, algorithm="ml-dsa-65")
    issue(tmp_path, "board")
    assert [each.algorithm for each in show(tmp_path)] == ["ml-dsa-65"] * 3
    assert [each.problems for each in show(tmp_path)] == [()] * 3


@pytest.mark.parametrize("name", ["authority.pem", "authority-key.pem"])
def test_issue_needs_the_authority(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(SecurityError, match=f"{name}: no such file; .*netq certs init"):
        issue(folder, "board")


def test_issue_refuses_the_key_of_another_authority(folder: Path, tmp_path: Path) -> None:
    init(tmp_path / "other")
    (tmp_path / "other" / "authority-key.pem").replace(folder / "authority-key.pem")
    with pytest.raises(SecurityError, match=r"authority-key\.pem: the key of another authority than .*authority\.pem"):
        issue(folder, "board")


def test_issue_names_an_unusable_key(folder: Path) -> None:
    (folder / "authority-key.pem").write_text("nothing")
    with pytest.raises(SecurityError, match=r"authority-key\.pem: no private key in PEM"):
        issue(folder, "board")
    (folder / "authority-key.pem").unlink()
    (folder / "authority-key.pem").mkdir()
    with pytest.raises(SecurityError, match=r"authority-key\.pem: not readable: Is a directory"):
        issue(folder, "board")


def test_revoke_appends_the_serial_once(folder: Path) -> None:
    issue(folder, "board")
    head = (folder / "revoked.txt").read_text()
    serial = revoke(folder, "board")
    assert serial == entry(folder, "board").serial
    today = datetime.datetime.now(datetime.UTC).date()
    assert (folder / "revoked.txt").read_text() == f"{head}# board, {today}\n{serial:x}\n"
    assert entry(folder, "board").revoked
    assert revoke(folder, "board") == serial
    assert (folder / "revoked.txt").read_text() == f"{head}# board, {today}\n{serial:x}\n"


def test_revoke_an_older_certificate(folder: Path) -> None:
    issue(folder, "board")
    old = entry(folder, "board").serial
    issue(folder, "board", renew=True)
    assert revoke(folder, "board", old) == old
    assert not entry(folder, "board").revoked
    revoke(folder, "board")
    assert entry(folder, "board").revoked
    assert (folder / "revoked.txt").read_text().count("# board, ") == 2


def test_revoke_makes_a_missing_list_and_keeps_lines_of_others(folder: Path) -> None:
    issue(folder, "board")
    (folder / "revoked.txt").unlink()
    revoke(folder, "board")
    assert entry(folder, "board").revoked
    (folder / "revoked.txt").write_text("  AB12  # by hand\n\n# a comment\nff")
    serial = revoke(folder, "board")
    assert (folder / "revoked.txt").read_text().startswith("  AB12  # by hand\n\n# a comment\nff\n# board")
    assert (folder / "revoked.txt").read_text().endswith(f"\n{serial:x}\n")


def test_revocations_at_the_same_time_are_all_kept(folder: Path) -> None:
    names = [f"board-{number}" for number in range(8)]
    for name in names:
        issue(folder, name)
    threads = [threading.Thread(target=revoke, args=(folder, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.revoked for each in show(folder)] == [False, False, *[True] * 8]


@pytest.mark.parametrize("line", ["nothing", "12 34", "-1"])
def test_wrong_list_is_named_with_its_line(folder: Path, line: str) -> None:
    issue(folder, "board")
    (folder / "revoked.txt").write_text(f"# ours\n{line}\n")
    for call in (lambda: revoke(folder, "board"), lambda: show(folder)):
        with pytest.raises(SecurityError, match=r"revoked\.txt: line 2 is no serial number; expected hexadecimal"):
            call()
    assert (folder / "revoked.txt").read_text() == f"# ours\n{line}\n"


def test_server_certificate_cannot_be_revoked(folder: Path) -> None:
    with pytest.raises(SecurityError, match=r"server\.pem: of a server, and clients read no revoked\.txt"):
        revoke(folder, "server")


def test_show_on_a_device_with_its_three_files(folder: Path, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.mkdir()
    for path in issue(folder, "board"):
        path.rename(device / path.name)
    signer, board = show(device)
    assert (signer.has_key, signer.problems, board.has_key, board.problems) == (False, (), True, ())


def test_show_sorts_by_kind_and_name(folder: Path) -> None:
    for name in ("b", "a"):
        issue(folder, name)
    issue(folder, "relay", ["relay.local"])
    (folder / "odd.pem").write_text("nothing")
    assert [each.name for each in show(folder)] == ["authority", "relay", "server", "a", "b", "odd"]


def test_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="nowhere: No such file or directory; `netq certs init` makes a folder"):
        show(tmp_path / "nowhere")


def in_days(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Set the clock of netq.security.certificates forward."""
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    monkeypatch.setattr(certificates, "_now", lambda: then)


PROBLEMS: dict[str, tuple[str, Callable[[Path], object], int]] = {
    "expired": ("board.pem: has expired on .*; renew it", lambda folder: None, 366),
    "not yet valid": ("board.pem: not valid before .*; set the clock", lambda folder: None, -2),
    "readable key": (
        "board-key.pem: all users of this machine can read it; run: chmod 600 .*board-key.pem",
        lambda folder: (folder / "board-key.pem").chmod(0o604),
        0,
    ),
    "key of another certificate": (
        "board-key.pem: the key of another certificate than .*board.pem; renew",
        lambda folder: (folder / "server-key.pem").replace(folder / "board-key.pem"),
        0,
    ),
    "damaged key": ("board-key.pem: no private key", lambda folder: (folder / "board-key.pem").write_text("x"), 0),
    "damaged certificate": (
        "board.pem: no certificate in PEM",
        lambda folder: (folder / "board.pem").write_text("x"),
        0,
    ),
    "missing certificate": ("board.pem: no such file", lambda folder: (folder / "board.pem").unlink(), 0),
    "another authority": (
        "board.pem: authority.pem has not signed it; renew it",
        lambda folder: init(folder, overwrite=True),
        0,
    ),
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_show_tells_problems(folder: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    problem, change, days = PROBLEMS[what]
    issue(folder, "board")
    change(folder)
    in_days(monkeypatch, days)
    (found,) = entry(folder, "board").problems
    assert len(found.splitlines()) == 1
    assert re.search(problem, found)


def test_show_tells_an_expired_authority(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_days(monkeypatch, 3651)
    (problem,) = entry(folder, "authority").problems
    assert "has expired on" in problem
    assert problem.endswith("make a new authority in another folder")


def test_show_tells_a_missing_authority(folder: Path) -> None:
    (folder / "authority.pem").unlink()
    (problem,) = entry(folder, "authority").problems
    assert problem.startswith(f"{folder / 'authority.pem'}: no such file")


def test_show_tells_a_client_without_an_id(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issue(folder, "board")
    monkeypatch.setattr(authority, "id_of", lambda certificate: None)
    (problem,) = entry(folder, "board").problems
    assert "board.pem: names no id (urn:uuid:…)" in problem


# Keys that stay on their machine.


@pytest.mark.parametrize("algorithm", ["p256", "ml-dsa-65"])
def test_certificate_of_a_request_is_for_its_key(tmp_path: Path, algorithm: str) -> None:
    folder, board = tmp_path / "certificates", tmp_path / "board"
    init(folder, algorithm=algorithm)
    key, asked = request(board, "board-8", algorithm)
    assert mode(key) == 0o600
    assert b"PRIVATE" not in asked.read_bytes()
    path = sign(folder, "board-8", asked)
    assert not (folder / "board-8-key.pem").exists()
    (board / "authority.pem").write_bytes((folder / "authority.pem").read_bytes())
    (board / path.name).write_bytes(path.read_bytes())
    there, here = entry(folder, "board-8"), entry(board, "board-8")
    assert (there.kind, there.problems, there.has_key) == (CertificateKind.CLIENT, (), False)
    assert (here.problems, here.has_key, here.id) == ((), True, there.id)


def test_hosts_make_a_servers_certificate(folder: Path, tmp_path: Path) -> None:
    _, asked = request(tmp_path, "second")
    sign(folder, "second", asked, ["second.local", "10.0.0.2"])
    assert entry(folder, "second").hosts == ("second.local", "10.0.0.2")


def test_renewal_by_a_request_keeps_the_id(folder: Path, tmp_path: Path) -> None:
    first = issue(folder, "board-7")
    id = entry(folder, "board-7").id
    _, asked = request(tmp_path, "board-7")
    with pytest.raises(SecurityError, match=r"board-7\.pem exists and is left as it is"):
        sign(folder, "board-7", asked)
    sign(folder, "board-7", asked, renew=True)
    found = entry(folder, "board-7")
    assert found.id == id
    assert "the key of another certificate" in found.problems[0]  # the old key is in this folder
    assert first.key.exists()


def test_board_that_waits_for_its_certificate_says_so(tmp_path: Path) -> None:
    _, asked = request(tmp_path, "board-8")
    (problem,) = entry(tmp_path, "board-8").problems
    assert problem == f"{tmp_path / 'board-8.pem'}: not here yet; `netq certs sign` makes it of {asked}"


def test_existing_key_is_kept(tmp_path: Path) -> None:
    key, _ = request(tmp_path, "board-8")
    before = key.read_bytes()
    with pytest.raises(SecurityError, match="exists and is left as it is"):
        request(tmp_path, "board-8")
    assert key.read_bytes() == before


def test_wrong_requests_are_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="algorithm: 'rsa'; expected p256 or ml-dsa-65"):
        request(tmp_path, "board-8", "rsa")
    with pytest.raises(SecurityError, match=r"none\.csr: no such file"):
        sign(folder, "board-8", tmp_path / "none.csr")
    path = tmp_path / "text.csr"
    for text in (b"", b"hello", (folder / "server.pem").read_bytes()):
        path.write_bytes(text)
        with pytest.raises(SecurityError, match=r"text\.csr: no certificate request in PEM"):
            sign(folder, "board-8", path)
    _, other = request(tmp_path, "other", "ml-dsa-65")
    with pytest.raises(SecurityError, match=r"other\.csr: its key is of ml-dsa-65; expected one of p256"):
        sign(folder, "other", other)


def test_request_with_the_key_of_another_is_refused(folder: Path, tmp_path: Path) -> None:
    """Its signature shows that who has made it has the key."""
    _, asked = request(tmp_path, "board-8")
    pem = asked.read_text().splitlines()
    der = bytearray(base64.b64decode("".join(pem[1:-1])))
    der[-1] ^= 1
    body = base64.b64encode(bytes(der)).decode()
    asked.write_text("\n".join([pem[0], body, pem[-1], ""]))
    with pytest.raises(
        SecurityError, match=r"board-8\.csr: (its signature is not of its own key|no certificate request)"
    ):
        sign(folder, "board-8", asked)
