"""The page in a browser, Debian's chromium: what a person sees, by day and night, on a phone, and by keyboard.

By Playwright's async API: its other one keeps an event loop in this thread, for all tests that follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import re
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fl.page.history import History
from fl.page.overview import Clients, Overview
from fl.page.server import PageServer
from fl.status import ClientStatus, Refusal, Stage

CHROMIUM = shutil.which("chromium")
HERE = importlib.util.find_spec("playwright") is not None and CHROMIUM is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HERE, reason="no chromium or playwright: apt install chromium, pip install playwright"),
]

SOON = 20_000  # milliseconds
MARKUP = "<img src=x onerror=alert(1)>"
PICTURES = os.environ.get("NETQ_PICTURES")  # a folder for screenshots


class Shown:
    """A federation that a test makes up, and its page."""

    def __init__(self, clients: int) -> None:
        self.history = History()
        self.history.begin({"strategy": "FedAvg", "rounds": 20, "federation": str(uuid.UUID(int=2**100))})
        self.members = [_client(number, strange=clients == 4) for number in range(clients)]
        self.refusals = [Refusal(time.time(), "10.0.0.66:4242", "the certificate of board-6 is revoked")]
        self.server = self._serve(0)
        for number in range(1, 13):
            self.add_round(number)
        self.history.round_begins(13)
        self.history.log("warning", f"board-2: left out: {MARKUP}", time.time())

    def _serve(self, port: int) -> PageServer:
        overview = Overview(self.history, lambda: Clients(list(self.members), list(self.refusals)))
        return PageServer(self.history, overview, port)

    def add_round(self, number: int, **others: Any) -> None:
        metrics = {str(each.id): {"loss": 2 / number + 0.1 * (each.id.int % 7)} for each in self.members}
        record = {
            "round": number,
            "clients": [str(each.id) for each in self.members],
            "failures": {"x": {"why": "FAILED", "reason": "no space left on device"}} if number % 4 == 0 else {},
            "names": {"x": "board-2"},
            "metrics": {"loss": 2 / number + 0.3, MARKUP: 1.0},
            "evaluation": {"accuracy": 1 - 0.9 / number},
            "client_metrics": metrics,
            "bytes_in": 1e6 * len(self.members),
            "bytes_out": 1.1e6 * len(self.members),
            "seconds": 2.0 + number % 3,
        }
        self.history.round_ends({**record, **others}, time.time() - 60 + number)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/"


def _client(number: int, *, strange: bool = False) -> ClientStatus:
    stage = [Stage.TRAINING, Stage.DONE, Stage.FAILED, Stage.SENDING, Stage.LOST][number % 5 if number > 3 else number]
    return ClientStatus(
        uuid.UUID(int=2**90 + number),
        MARKUP if strange and number == 3 else f"board-{number}",
        stage,
        reason="no space left on device" if stage is Stage.FAILED else "",
        since=time.time() - 7 * number,
        address=f"10.0.0.{number % 250}:51966",
        version="0.1.0",
        certificate_end=time.time() + 86400 * (10 + 300 * (number != 1)),
        bytes_in=10**6 * number,
        bytes_out=2 * 10**6 * number,
        updates=number % 13,
        failures=int(stage is Stage.FAILED),
        seconds=1.5 + number % 9,
    )


@pytest.fixture
def shown() -> Iterator[Callable[[int], Shown]]:
    made: list[Shown] = []

    def make(clients: int) -> Shown:
        made.append(Shown(clients))
        return made[-1]

    yield make
    for each in made:
        each.server.close()


@contextlib.asynccontextmanager
async def opened(shown: Shown, **options: Any) -> AsyncIterator[Any]:
    """Open the page; at the end no script may have failed, and nothing been asked of another host."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        errors: list[str] = []
        foreign: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(f"dialog {dialog.message}"))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.on("request", lambda asked: None if asked.url.startswith(shown.url) else foreign.append(asked.url))
        await page.goto(shown.url)
        yield page
        await browser.close()
        lost = re.compile("ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE")
        assert [error for error in errors if not lost.search(error)] == []
        assert foreign == []


def in_browser(shown: Shown, act: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with opened(shown, **options) as page:
            await act(page)

    asyncio.run(run())


async def has(page: Any, selector: str, text: str) -> None:
    from playwright.async_api import expect

    await expect(page.locator(selector)).to_contain_text(re.compile(text), timeout=SOON)


async def picture(page: Any, name: str) -> None:
    if PICTURES:
        await page.screenshot(path=Path(PICTURES) / f"{name}.png", full_page=True)


def test_page_shows_round_clients_and_curves(shown: Callable[[int], Shown]) -> None:
    async def act(page: Any) -> None:
        await has(page, "#round", "round 13 of 20 is running")
        await has(page, "#left", "about .* left")
        await has(page, "#rows", "board-2")
        await has(page, "#stages", "1 training")
        await has(page, "#refused", "revoked")
        await has(page, "#log", re.escape(MARKUP))
        assert await page.locator("canvas").count() == 3
        assert await page.locator("#curve").get_attribute("aria-label") == "evaluation/accuracy: accuracy 0.925"
        assert await page.locator("img").count() == 0
        await picture(page, "4")

    in_browser(shown(4), act)


def test_new_round_and_new_state_appear_by_themselves(shown: Callable[[int], Shown]) -> None:
    found = shown(4)

    async def act(page: Any) -> None:
        await has(page, "#round", "round 13 of 20 is running")
        found.add_round(13)
        await has(page, "#rounds", "^13")
        await has(page, "#round", "round 13 of 20 is done")
        found.members[0] = _client(4)
        await has(page, "#rows", "board-4")

    in_browser(found, act)


def test_server_that_goes_away_is_said_and_found_again(shown: Callable[[int], Shown]) -> None:
    found = shown(4)

    async def act(page: Any) -> None:
        await has(page, "#connection", "live")
        found.server.close()
        await has(page, "#connection", "no connection to the server")
        found.server = found._serve(int(found.url.rsplit(":", 1)[1].rstrip("/")))
        found.add_round(13)
        await has(page, "#connection", "live")
        await has(page, "#rounds", "^13")

    in_browser(found, act)


def test_table_of_a_thousand_clients_is_paged_and_searched(shown: Callable[[int], Shown]) -> None:
    async def act(page: Any) -> None:
        await has(page, "#shown", "1 to 50 of 1000")
        assert await page.locator("#rows tr").count() == 50
        await page.click("#next")
        await has(page, "#shown", "51 to 100 of 1000")
        await page.fill("#find", "board-77")
        await has(page, "#shown", "1 to 11 of 11")
        await page.fill("#find", "")
        await page.click("#stages button:has-text('training')")
        await has(page, "#shown", "of 200")
        await picture(page, "1000")

    in_browser(shown(1000), act)


def test_hundred_clients(shown: Callable[[int], Shown]) -> None:
    async def act(page: Any) -> None:
        await has(page, "#shown", "1 to 50 of 100")
        await picture(page, "100")

    in_browser(shown(100), act)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_has_no_serious_fault_of_accessibility(shown: Callable[[int], Shown], scheme: str, width: int) -> None:
    """By axe-core (WCAG 2.2, A and AA). And nothing is wider than the screen."""
    axe_core = pytest.importorskip("axe_playwright_python.async_playwright", reason="pip install axe-playwright-python")

    async def act(page: Any) -> None:
        await has(page, "#rows", "board-2")
        await has(page, "#curve", "accuracy")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        found = await axe_core.Axe().run(page)
        serious = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
        await picture(page, f"{width}-{scheme}")

    in_browser(shown(4), act, color_scheme=scheme, viewport={"width": width, "height": 844})


def test_keyboard_reaches_all_controls(shown: Callable[[int], Shown]) -> None:
    async def act(page: Any) -> None:
        await has(page, "#rows", "board-2")
        seen = set()
        for _ in range(30):
            await page.keyboard.press("Tab")
            seen.add(await page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        assert seen >= {"metric", "axis", "spread", "stage", "find", "log", "BUTTON", "A"}

    in_browser(shown(4), act)


def test_curves_by_time_and_of_another_metric(shown: Callable[[int], Shown]) -> None:
    async def act(page: Any) -> None:
        await has(page, "#rows", "board-2")
        await page.select_option("#metric", "metrics/loss")
        await page.select_option("#axis", "time")
        await page.wait_for_selector("#curve[aria-label^='metrics/loss']", timeout=SOON)
        await page.select_option("#axis", "round")
        if PICTURES:  # that of the documentation
            await page.set_viewport_size({"width": 1100, "height": 1450})
            await page.wait_for_timeout(500)
            await page.screenshot(path=Path(PICTURES) / "page.png")
        await page.uncheck("#spread")
        await page.wait_for_selector("#curve[aria-label='metrics/loss: loss 0.4667']", timeout=SOON)

    in_browser(shown(12), act)
