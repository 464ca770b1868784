"""What `trainband serve --follow` says of addresses where no job can be followed."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trainband.cli.serve import serve
from trainband.errors import ClusterError, ProtocolError, Unreachable

PREDICT = "def predict(params, batch):\n    return batch\n"


def follow(address: str, tmp_path: Path, *words: str) -> None:
    """Runs the command until it fails."""
    (tmp_path / "predict.py").write_text(PREDICT)
    model = ["--model", f"{tmp_path / 'predict.py'}:predict", "--input", "input:float32[batch,2]"]
    CliRunner().invoke(
        serve, ["--follow", address, *(words or model), "--port", "0"], catch_exceptions=False, standalone_mode=False
    )


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(Unreachable, match=f"nothing listens at {address}. Give --follow the address of a ps"):
            follow(address, tmp_path)


def test_the_first_worker_of_a_job_without_ps(tmp_path: Path) -> None:
    """It speaks another protocol, as does anybody else who is no ps."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    taken, _ = listening.accept()
                except OSError:
                    return
                with taken:
                    taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ProtocolError, match=r"a job without ps.*serve its directory of checkpoints"):
            follow(address, tmp_path)
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(10.0)


def test_what_was_typed(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="--follow"):
        follow("localhost", tmp_path)
    with pytest.raises(click.UsageError, match="give --model"):
        follow("127.0.0.1:1", tmp_path, "--batch", "2")
    with pytest.raises(click.UsageError, match="Give SOURCE, or a running job"):
        CliRunner().invoke(serve, [], catch_exceptions=False, standalone_mode=False)
