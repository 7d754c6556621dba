"""The pages in a real browser: nothing overflows, no error, no request, audio plays, the keyboard reaches all."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_compare_page import SAMPLES
from test_report_page import better, lost, no_difference, tone, worse

from whispertune.compare_page import render_comparison
from whispertune.report_page import render_page

pytestmark = pytest.mark.real
WIDTHS = (320, 390, 1280)
PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --mute-audio --remote-debugging-pipe"
)


class Browser:
    """A headless Chromium, spoken to over its pipe: JSON messages that end in a zero byte."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # What is to become 3 and 4 may be either already, so it is moved out of the way first.
        shell = f'exec 5<&{theirs_in} 6>&{theirs_out}; exec 3<&5 4>&6 5<&- 6>&-; exec "$@"'
        words = [
            "bash",
            "-c",
            shell,
            "chromium",
            PROGRAM,
            *QUIET.split(),
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            words, pass_fds=(theirs_in, theirs_out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = os.fdopen(ours_in, "rb"), os.fdopen(ours_out, "wb")
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]

    def _next(self) -> dict[str, Any]:
        held = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser is gone"
            held += byte
        said = json.loads(held)
        if "method" in said:
            self.events.append(said)
        return said

    def show(self, page: Path, width: int, scheme: str) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next()

    def value(self, expression: str) -> Any:
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press_tab(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)
        self._in.close()
        self._out.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    audio = {clip["id"]: tone() for clip in better()["clips_changed"]}
    rendered = {
        "better": render_page(better(), audio),
        "worse": render_page(worse(), audio),
        "lost": render_page(lost(), audio),
        "no_difference": render_page(no_difference(), {}),
        "compare": render_comparison(SAMPLES["several"]()),
    }
    for name, html in rendered.items():
        (folder / f"{name}.html").write_text(html, "utf-8")
    return {name: folder / f"{name}.html" for name in rendered}


NAMES = ("better", "worse", "lost", "no_difference", "compare")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_overflows_errs_or_leaves_the_page(browser, pages, name, width, scheme):
    browser.show(pages[name], width, scheme)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")
    overflowing = browser.value(
        "[...document.querySelectorAll('main *, header *')].filter(each => each.getBoundingClientRect().right > "
        "innerWidth + 1 && !each.closest('.spoken, svg, .sets > div, pre')).map(each => each.outerHTML.slice(0, 120))"
    )
    assert browser.value("document.documentElement.scrollWidth") <= width, overflowing
    wrong = [
        e["params"] for e in browser.events if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")
    ]
    assert wrong == []
    asked = [
        e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"
    ]
    assert [url[:40] for url in asked if not url.startswith(("data:", pages[name].as_uri()))] == []
    background = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) > 384) is (scheme == "light")


@pytest.mark.parametrize("name", NAMES)
def test_the_keyboard_reaches_every_control(browser, pages, name):
    browser.show(pages[name], 1280, "light")
    wanted = browser.value(
        "[...document.querySelectorAll('summary, audio, input:checked, [tabindex], a[href]')].map((each, number) => "
        "{ each.dataset.number = number; return number })"
    )
    reached = set()
    for _ in range(12 * len(wanted) + 5):
        browser.press_tab()
        number = browser.value("document.activeElement.dataset.number ?? null")
        if number is not None:
            reached.add(int(number))
        if len(reached) == len(wanted):
            break
    assert wanted and reached == set(wanted)


def test_the_audio_plays(browser, pages):
    browser.show(pages["better"], 390, "light")
    lengths = browser.value(
        "Promise.all([...document.querySelectorAll('audio')].map(each => new Promise(done => { each.onerror = () => "
        "done(-1); each.onloadedmetadata = () => done(each.duration); each.load() })))"
    )
    assert lengths and all(length == pytest.approx(1.5, abs=0.01) for length in lengths)
    browser.value("document.querySelector('audio').play()")
    deadline = time.monotonic() + 10
    while browser.value("document.querySelector('audio').currentTime") == 0:
        assert time.monotonic() < deadline, "it does not move"
