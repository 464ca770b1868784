"""Who is answered, decided from headers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from trainband.errors import YourError
from trainband.runtime.hosts import is_loopback
from trainband.runtime.http.access import Access, read_token

TOKEN = "0123456789abcdef"


def status(access: Access, *headers: tuple[str, str], public: bool = False) -> int:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    denial = access.denied(raw, cookie="token_1", public=public)
    return 200 if denial is None else denial.status


@pytest.mark.smoke
def test_a_name_that_leads_here_is_not_enough() -> None:
    on_loopback, elsewhere = Access.at("127.0.0.1", hosts=["Proxy.example"]), Access.at("0.0.0.0")
    own = socket.gethostname()
    for host, here, there in (
        ("localhost:8000", 200, 200),
        ("127.0.0.1", 200, 200),
        ("[::1]:80", 200, 200),
        ("10.0.0.7:8000", 400, 200),
        ("[2001:db8::1]:8000", 400, 200),
        ("proxy.example:443", 200, 400),
        (own, 200 if is_loopback(own) else 400, 200),
        ("evil.example", 400, 400),
        ("10.0.0.7.evil.example", 400, 400),
        ("", 400, 400),
    ):
        assert (status(on_loopback, ("Host", host)), status(elsewhere, ("Host", host))) == (here, there), host
    assert status(Access.at("0.0.0.0", hosts=["*"]), ("Host", "evil.example")) == 200
    assert status(Access.at("127.0.0.1", token=TOKEN), ("Host", "evil.example"), public=True) == 400
    assert status(Access.at("0.0.0.0", token=TOKEN), ("Host", "evil.example"), public=True) == 200


def test_headers_of_which_two_programs_may_believe_different_ones() -> None:
    access = Access()
    host = ("Host", "localhost")
    assert status(access, host, ("Host", "evil.example")) == 400
    assert status(access, ("Host", "evil.example"), host) == 400
    assert status(access, host, ("Content-Length", "1"), ("content-length", "1")) == 400
    assert status(access, host, ("Content-Length", "1"), ("Transfer-Encoding", "chunked")) == 400
    assert status(access, host, ("Accept", "a"), ("Accept", "b")) == 200


def test_the_token_comes_as_a_bearer_or_in_a_cookie() -> None:
    access = Access(token=TOKEN)
    host = ("Host", "localhost")
    assert status(access, host, ("Cookie", f"a=b; token_1={TOKEN}")) == 200
    assert status(access, host, ("Authorization", f"Bearer {TOKEN}")) == 200
    for name, value in (("Cookie", f"token_2={TOKEN}"), ("Cookie", "token_1=" + "\xff" * 9), ("Authorization", TOKEN)):
        assert status(access, host, (name, value)) == 401
    assert status(access, host, public=True) == 200


def test_a_wrong_token_is_told_from_none() -> None:
    access = Access.at("127.0.0.1", token=TOKEN)
    for headers, words in (([], "requires a token"), ([(b"authorization", b"Bearer wrong")], "is not this server's")):
        denial = access.denied(headers, cookie="token_1", public=False)
        assert denial is not None
        assert (denial.status, words in denial.message) == (401, True)


def test_a_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    assert read_token(file, "--token-file") == TOKEN
    for content in (b"short", b"x" * 10_000, b"\xff" * 20, b"with a space in it"):
        file.write_bytes(content)
        with pytest.raises(YourError, match="--token-file"):
            read_token(file, "--token-file")
