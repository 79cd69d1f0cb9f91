"""The log is told of strangers, and not for ever."""

from __future__ import annotations

from netq.runtime.log_dedup import LogDedup
from netq.text import printable


def test_a_message_about_a_host_is_logged_once_for_all_ports() -> None:
    complaints = LogDedup()
    assert complaints.is_new("10.0.0.1:5001", "no certificate", 0.0)
    assert not complaints.is_new("10.0.0.1:5002", "no certificate", 0.0)
    assert complaints.is_new("10.0.0.2:5003", "no certificate", 0.0)
    assert complaints.is_new("10.0.0.1:5004", "nothing heard for 10.2 s", 0.0)
    assert not complaints.is_new("10.0.0.1:5005", "nothing heard for 11.7 s", 0.0)


def test_it_is_news_again_after_all_was_well() -> None:
    complaints = LogDedup()
    for host in ("10.0.0.1:1", "[fe80::1]:1", "a process"):
        assert complaints.is_new(host, "no certificate", 0.0)
        assert complaints.forget(host)
        assert not complaints.forget(host)
        assert complaints.is_new(host, "no certificate", 0.0)
        assert not complaints.is_new(host, "no certificate", 0.0)


def test_a_working_client_lets_its_host_be_logged_again_later() -> None:
    complaints, told = LogDedup(), 0
    for second in range(1000):
        told += complaints.is_new("10.0.0.1:1883, client a", "no INI", float(second))
        complaints.forget_at("10.0.0.1:1883, client b", second + 60.0)
    assert told == 1 + 999 // 60


def test_all_clients_of_one_broker_are_one_host() -> None:
    complaints = LogDedup()
    assert sum(complaints.is_new(f"127.0.0.1:1883, client {n:016x}", "no INI", 1.0) for n in range(500)) == 1


def test_a_host_has_at_most_sixteen_messages_in_the_log() -> None:
    complaints = LogDedup()
    news = [
        complaints.is_new("10.0.0.1:1", f"it begins with {chr(97 + n // 26)}{chr(97 + n % 26)}", 0.0)
        for n in range(500)
    ]
    assert sum(news) == 16
    assert complaints.is_new("10.0.0.2:1", "it begins with aa", 0.0)


def test_all_hosts_together_have_sixty_lines_a_minute() -> None:
    complaints = LogDedup()
    news = [complaints.is_new(f"10.0.{n // 250}.{n % 250}:1", "no certificate", n / 10) for n in range(1200)]
    assert [sum(news[:600]), sum(news[600:])] == [60, 60]


def test_a_crowd_of_hosts_is_forgotten_the_longest_ago_first() -> None:
    complaints = LogDedup()
    for n in range(1000):
        assert complaints.is_new(f"10.0.{n // 250}.{n % 250}:1", "no certificate", float(n))
        assert not complaints.is_new("10.0.0.0:1", "no certificate", 0.0), "it comes again and again"
    assert not complaints.is_new("10.0.3.249:1", "no certificate", 1000.0)
    assert complaints.is_new("10.0.0.1:1", "no certificate", 1000.0)
    assert len(complaints._logged) == 256


def test_text_of_a_peer_is_one_line_of_bounded_length() -> None:
    assert printable("été: no") == "été: no"
    assert printable("bye\nCRITICAL \x1b[2J\0") == r"bye\nCRITICAL \x1b[2J\x00"
    assert printable("x" * 500) == "x" * 500
    assert printable("x" * 501) == "x" * 500 + "…"
