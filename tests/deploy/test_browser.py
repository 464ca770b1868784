"""The browser demo: the page draws as its training data were drawn, and reads digits in real Chromium."""

from __future__ import annotations

import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BROWSER = ROOT / "deploy" / "browser"
SITE = BROWSER / "site"
HERE = Path(__file__).parent
DRAWINGS = HERE / "drawings.json"
"""Digits drawn by hand; none of them is among those that the model is trained on."""


def node() -> str:
    """Node, 20 or later; the test is skipped without."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed, and the page is JavaScript")
    return found


def chromium() -> str:
    """A Chromium of any name; the test is skipped without."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed (Debian: apt-get install chromium)")


def playwright() -> Path:
    """Playwright, which `npm run build` installs; the test is skipped without."""
    found = BROWSER / "node_modules" / "playwright-core" / "index.mjs"
    if not found.exists() or not (SITE / "ort").exists():
        pytest.skip(f"the page is not built: npm run build, in {BROWSER.relative_to(ROOT)}")
    return found


def run(*command: str | Path) -> str:
    """What a command prints; its own words where it fails."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, cwd=HERE)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.smoke
def test_nothing_comes_from_another_host() -> None:
    for file in [*SITE.glob("*.html"), *SITE.glob("*.css"), *SITE.glob("*.js")]:
        assert not re.search(r"https?://|[\"'(]//", file.read_text(encoding="utf-8")), file.name
    assert "default-src 'self'" in (SITE / "index.html").read_text(encoding="utf-8")


def test_the_page_draws_as_the_training_data_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BROWSER))
    strokes = __import__("strokes")
    drawings = json.loads(DRAWINGS.read_text(encoding="utf-8"))
    images = json.loads(run(node(), "rasterise.mjs", SITE / "ink.js", DRAWINGS))
    for digit, image in zip(drawings, images, strict=True):
        page = np.reshape(image, (28, 28))
        # The page keeps the points where they are, the training data resamples them: corners differ a little.
        assert np.abs(page - strokes.rasterise(drawings[digit])).mean() < 3.0, digit
        rows, columns = np.nonzero(page)
        assert max(np.ptp(rows), np.ptp(columns)) + 1 in (20, 21), "MNIST's box"
        assert np.allclose(np.average(np.mgrid[:28, :28], axis=(1, 2), weights=page), 13.5, atol=0.1)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page said to all that was done to it, with a model that was trained and exported for this."""
    command, library = chromium(), playwright()
    site = tmp_path_factory.mktemp("page") / "site"
    shutil.copytree(SITE, site, ignore=shutil.ignore_patterns("model"))
    run(sys.executable, BROWSER / "make_model.py", "--out", site / "model", "--steps", "500")
    handler = functools.partial(_Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        said = json.loads(run(node(), "drawing_pad.mjs", library, command, address, DRAWINGS, site.parent))
        server.shutdown()
    return {**said, "address": address, "screenshots": site.parent}


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and does not talk of it."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.slow
@pytest.mark.limit(300)
def test_chromium_reads_what_is_drawn(page: dict[str, Any]) -> None:
    for digit, said in page["mouse"].items():
        assert said["digit"] == digit, (digit, said)
        assert said["spoken"].startswith(("This is", "Probably")), said
        assert re.fullmatch(r"in (less than 0\.1|[\d.]+) ms", said["timing"]), said
        assert len(said["shares"]) == 10
        assert sum(float(share.rstrip("%")) for share in said["shares"]) == pytest.approx(100, abs=1.5)
    assert len(page["mouse"]) == 10
    assert {digit: said["digit"] for digit, said in page["touch"].items()} == {"3": "3", "8": "8", "5": "5"}
    assert page["keyboard"]["digit"] == "1"
    assert page["undone"]["digit"] == "7", "the second stroke is undone"
    assert page["cleared"] == {"answer": "Ready", "disabled": True, "focused": "pad"}


@pytest.mark.slow
def test_the_page_is_whole(page: dict[str, Any]) -> None:
    assert not page["complaints"], "the console of the browser is empty"
    assert page["requests"]
    assert all(url.startswith(page["address"]) for url in page["requests"]), page["requests"]
    assert all(page["screens"].values()), f"on each screen all is seen without scrolling: {page['screens']}"
    assert page["ground-light"] != page["ground-dark"]
    assert "make_model.py" in page["without"]
    for name in ("wide-light", "wide-dark", "phone-light", "phone-dark"):
        assert (page["screenshots"] / f"{name}.png").stat().st_size > 10_000
