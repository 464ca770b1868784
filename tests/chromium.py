"""A headless Chromium, driven over pipes by its own DevTools protocol: no driver and no package is needed.

Source: https://chromedevtools.github.io/devtools-protocol/ and Chromium's --remote-debugging-pipe.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ANSWER_S = 30.0
# Its pipes are to be descriptors 3 and 4, whatever they are here.
_START = (
    "import fcntl, os, sys; r, w = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]); "
    "os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
)


def find_chromium() -> str:
    """A Chromium of any name; the test is skipped without."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")


class Page:
    """One page. What it complained of and asked for is kept.

    Attributes:
      complaints: errors and warnings of its console, exceptions, and requests that failed.
      requests: every address that it asked for.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol."""
        return self._browser.call(method, session=self._session, **parameters)

    def open(self, url: str) -> None:
        """Goes to an address."""
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression: str, timeout_s: float = ANSWER_S) -> Any:
        """The value of an expression once it is true."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"{expression} is not true after {timeout_s:g} s: {self.text()[:2000]}")
            time.sleep(0.02)
        return found

    def text(self, selector: str = "body") -> str:
        """The text of the first element that matches."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def resize(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Gives the window a size, and the system a preference."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key: str) -> None:
        """A key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def screenshot(self, path: Path) -> None:
        """What is seen, as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def record(self, method: str, event: dict[str, Any]) -> None:
        """Keeps what an event says."""
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.complaints.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.complaints.append(f"{event['type']}: {[one.get('value') for one in event['args']]}")
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{event['entry']['source']}: {event['entry']['text']}")


class Browser:
    """A Chromium for as long as its context lasts."""

    def __init__(self, command: str, profile: str) -> None:
        ours_read, its_write = os.pipe()
        its_read, ours_write = os.pipe()
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--force-device-scale-factor=1",
            "--hide-scrollbars",
            # Chromium refuses its sandbox to root, as which tests run in containers; the only page is ours.
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            "about:blank",
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, str(its_read), str(its_write), command, *flags],
            pass_fds=(its_read, its_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(its_read)
        os.close(its_write)
        self._commands = os.fdopen(ours_write, "wb", buffering=0)
        self._answers = os.fdopen(ours_read, "rb")
        self._number = 0
        self._came: dict[int, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._closed = False
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, name="chromium", daemon=True)
        self._reader.start()

    def page(self) -> Page:
        """A new page, in a context of its own: without cookies of others."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        return page

    def call(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer."""
        with self._news:
            self._number += 1
            number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        self._commands.write(json.dumps(message).encode() + b"\0")
        with self._news:
            assert self._news.wait_for(lambda: number in self._came or self._closed, ANSWER_S), (
                f"{method} had no answer"
            )
            answer = self._came.pop(number, None)
        assert answer is not None, "Chromium has ended"
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def close(self) -> None:
        """Ends it."""
        try:
            self._commands.write(b'{"id": 0, "method": "Browser.close"}\0')
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join(10)
        self._commands.close()
        self._answers.close()

    def _read(self) -> None:
        rest = b""
        while chunk := self._answers.raw.read(1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for raw in messages:
                self._handle(json.loads(raw))
        with self._news:
            self._closed = True
            self._news.notify_all()

    def _handle(self, message: dict[str, Any]) -> None:
        if "id" in message:
            with self._news:
                self._came[message["id"]] = message
                self._news.notify_all()
        elif (page := self._pages.get(message.get("sessionId", ""))) is not None:
            page.record(message["method"], message["params"])


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    command = find_chromium()
    with tempfile.TemporaryDirectory(prefix="trainband-chromium-", ignore_cleanup_errors=True) as profile:
        browser = Browser(command, profile)
        try:
            yield browser
        finally:
            browser.close()
