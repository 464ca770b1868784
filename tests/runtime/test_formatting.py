"""What strangers wrote is printed so that it only prints."""

from __future__ import annotations

import json
import logging

import pytest

from trainband.runtime.formatting import printable, printable_json
from trainband.runtime.logs import LogHandler
from trainband.runtime.waiting import say_on_stderr

HOSTILE = "a\x1b[2J\x9b1m\x07\r\t\x7f\u202eb\u2066\u2028\ud800"
VISIBLE = r"a\x1b[2J\x9b1m\x07\x0d\x09\x7f\u202eb\u2066\u2028\ud800"


def test_what_a_terminal_would_obey_becomes_visible() -> None:
    assert printable(HOSTILE) == VISIBLE
    assert printable("one\ntwo") == r"one\ntwo"
    assert printable("one\ntwo", newline="\n  ") == "one\n  two"


@pytest.mark.parametrize("text", ["", "worker:1", "größe 層 👩‍🔬 a\u00a0b", "日本語"])
def test_ordinary_text_stays(text: str) -> None:
    assert printable(text) == text


def test_json_means_the_same() -> None:
    text = json.dumps({"name": "\u202e\x7f\x9b é"}, ensure_ascii=False, indent=2)
    safe = printable_json(text)
    assert json.loads(safe) == json.loads(text)
    assert printable(safe, newline="\n") == safe


def test_no_line_is_forged(capsys: pytest.CaptureFixture[str]) -> None:
    say_on_stderr(f"worker:1 failed: {HOSTILE}\ntrainband: WARNING: all is lost")
    assert capsys.readouterr().err == f"trainband: worker:1 failed: {VISIBLE}\n    trainband: WARNING: all is lost\n"


def test_the_log_shows_it_too() -> None:
    record = logging.LogRecord("trainband.ps", logging.INFO, "here", 1, "%s said %s", ("x", f"{HOSTILE}\nb"), None)
    assert LogHandler("ps:0").format(record).endswith(rf"x said {VISIBLE}\nb")


def test_what_is_too_long_is_cut() -> None:
    assert printable("x" * 11, 10) == "x" * 9 + "…"
