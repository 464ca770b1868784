"""Downloading MNIST, from a server in this process: there is no network in these tests."""

from __future__ import annotations

import gzip
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from trainband.data import load, mnist
from trainband.errors import DataError, DeadlineExceeded, Unreachable


def published() -> dict[str, bytes]:
    """Four small files in the published form."""
    files = {}
    for part, size in (("train", 5), ("t10k", 2)):
        for kind, shape in (("images-idx3", (size, 28, 28)), ("labels-idx1", (size,))):
            header = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
            body = (np.arange(np.prod(shape)) % 10).astype(np.uint8).tobytes()
            files[f"{part}-{kind}-ubyte.gz"] = gzip.compress(header + body, mtime=0)
    return files


class Mirror:
    """A web server of a few files; it remembers what it was asked for."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []
        self.announce_extra = 0  # bytes that Content-Length promises beyond what is sent
        self.silent = threading.Event()  # set: answer nothing until `released`
        self.released = threading.Event()
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.removeprefix("/mnist/")
                mirror.asked.append(name)
                if mirror.silent.is_set():
                    mirror.released.wait(30)
                    return
                if name not in mirror.files:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(mirror.files[name]) + mirror.announce_extra))
                self.end_headers()
                self.wfile.write(mirror.files[name])

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/mnist"

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Mirror(published())
    yield server
    server.close()


def digests(files: dict[str, bytes]) -> dict[str, str | None]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


UNKNOWN: dict[str, str | None] = dict.fromkeys(mnist.SHA256)


@pytest.mark.parametrize("known", [True, False], ids=["by-digest", "by-reading"])
def test_fetches_once(mirror: Mirror, tmp_path: Path, known: bool) -> None:
    wanted = digests(mirror.files) if known else UNKNOWN
    folder = tmp_path / "new" / "folder"
    dataset = mnist.download(folder, base_url=mirror.url, digests=wanted)
    assert (len(dataset.train), len(dataset.test)) == (5, 2)
    assert sorted(path.name for path in folder.iterdir()) == sorted(mirror.files)
    assert sorted(mirror.asked) == sorted(mirror.files)
    again = mnist.download(folder, base_url=mirror.url, digests=wanted)
    assert len(mirror.asked) == 4
    np.testing.assert_array_equal(again.train.images, load(folder).train.images)


def test_replaces_a_damaged_file(mirror: Mirror, tmp_path: Path) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    (tmp_path / name).write_bytes(mirror.files[name][:-4])
    mnist.download(tmp_path, base_url=mirror.url, digests=UNKNOWN)
    assert (tmp_path / name).read_bytes() == mirror.files[name]


def test_wrong_digest_keeps_nothing(mirror: Mirror, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz .* has SHA-256 .* it was discarded"):
        mnist.download(tmp_path, base_url=mirror.url)
    assert list(tmp_path.iterdir()) == []


def test_not_what_its_name_says(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["train-images-idx3-ubyte.gz"] = b"<html>log in first</html>"
    with pytest.raises(DataError, match="starts with 3c 68 74 6d"):
        mnist.download(tmp_path, base_url=mirror.url, digests=UNKNOWN)
    assert list(tmp_path.iterdir()) == []


def test_broken_connection_keeps_nothing(mirror: Mirror, tmp_path: Path) -> None:
    mirror.announce_extra = 100
    with pytest.raises(Unreachable, match="connection broke"):
        mnist.download(tmp_path, base_url=mirror.url, digests=UNKNOWN)
    assert list(tmp_path.iterdir()) == []


def test_no_such_file_on_the_server(mirror: Mirror, tmp_path: Path) -> None:
    del mirror.files["train-images-idx3-ubyte.gz"]
    with pytest.raises(DataError, match=r"answered 404 .*check base_url.*copy MNIST's four files"):
        mnist.download(tmp_path, base_url=mirror.url, digests=UNKNOWN)


def test_server_that_says_nothing(mirror: Mirror, tmp_path: Path) -> None:
    mirror.silent.set()
    with pytest.raises(DeadlineExceeded, match=r"sent nothing for 0\.2 s; try again, or raise timeout_s"):
        mnist.download(tmp_path, base_url=mirror.url, digests=UNKNOWN, timeout_s=0.2)


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as taken:  # bound but not listening: connections are refused, and nobody else can listen
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable, match=r"cannot be reached .*Without a network, copy MNIST's four files to"):
            mnist.download(tmp_path, base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "file:///etc/"}, "must start with http"),
        ({"digests": {}}, "digests lacks t10k-images"),
    ],
)
def test_wrong_arguments(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        mnist.download(tmp_path, **options)  # type: ignore[arg-type]


def test_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="cannot create the directory"):
        mnist.download(tmp_path / "file")


def test_load_downloads_only_into_a_directory() -> None:
    with pytest.raises(DataError, match="needs a data_dir"):
        load(download=True)


def test_load_passes_the_request_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Path] = []
    digits = load()

    def answer(directory: Path) -> object:
        asked.append(directory)
        return digits

    monkeypatch.setattr(mnist, "download", answer)
    assert load(tmp_path, download=True) is digits
    assert asked == [tmp_path]
