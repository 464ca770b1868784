"""MNIST: 60000 handwritten digits to train on and 10000 to test with, read from the four published files.

Source: LeCun, Bottou, Bengio, Haffner 1998, Gradient-based learning applied to document recognition.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from trainband.data import idx
from trainband.data.dataset import Dataset, Split
from trainband.errors import DataError, DeadlineExceeded, Unreachable
from trainband.runtime.regular_files import read_regular, write_regular

BASE_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"

SHA256: Mapping[str, str] = MappingProxyType(
    {
        "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    }
)
"""The published files and their digests."""

_LARGEST_FILE_BYTES = 64 << 20  # MNIST's largest has 9.9 MB; keeps a server from filling the memory


def read(directory: str | os.PathLike[str]) -> Dataset:
    """Read MNIST, or data in its form such as Fashion-MNIST, from its four files.

    Args:
      directory: where they are, plain or ``.gz``, named ``train-images-idx3-ubyte`` or ``train-images.idx3-ubyte``.

    Returns:
      The two parts, as published.

    Raises:
      DataError: a file is missing, damaged, or not what its name says; the message names it.
    """
    folder = Path(directory)
    return Dataset(_read_split(folder, "train"), _read_split(folder, "t10k"))


def download(
    directory: str | os.PathLike[str],
    *,
    base_url: str = BASE_URL,
    digests: Mapping[str, str | None] = SHA256,
    timeout_s: float = 30.0,
) -> Dataset:
    """Fetch the four files of MNIST into a directory; trainband downloads only when asked to.

    A file that exists and has the right digest is kept. A file appears under its name only when it is complete and
    checked, so an interrupted download leaves nothing behind that looks like data.

    Args:
      directory: where to put them; created if necessary.
      base_url: where from; the files' names are appended.
      digests: each file's SHA-256 in hex, or None to check it only by reading it (for other data in MNIST's form).
      timeout_s: how long to wait, in seconds, for a response and then for each further part of it.

    Returns:
      The result of `read` for that directory.

    Raises:
      DataError: base_url has no such file, or the content is not what was published.
      Unreachable: base_url cannot be reached; without a network, copy the files by hand.
      DeadlineExceeded: timeout_s passed without a byte.
    """
    folder = Path(directory)
    missing = SHA256.keys() - digests.keys()
    if missing:
        raise DataError(f"digests lacks {', '.join(sorted(missing))}; give None for a file with an unknown digest.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise DataError(f"cannot create the directory {folder}: {exc.strerror or exc}.") from exc
    for name in SHA256:
        target = folder / name
        if not _is_intact(target, digests[name]):
            data = _fetch(urllib.parse.urljoin(base_url.rstrip("/") + "/", name), folder, timeout_s)
            _check(data, name, base_url, digests[name])
            _write_at_once(target, data)
    # Read by name: an older plain file in the directory, which `read` would prefer, is not what was downloaded.
    return Dataset(
        _read_pair(folder / "train-images-idx3-ubyte.gz", folder / "train-labels-idx1-ubyte.gz"),
        _read_pair(folder / "t10k-images-idx3-ubyte.gz", folder / "t10k-labels-idx1-ubyte.gz"),
    )


def _read_split(folder: Path, part: str) -> Split:
    """Read the images and the labels of one part, "train" or "t10k"."""
    return _read_pair(_find(folder, f"{part}-images", "idx3"), _find(folder, f"{part}-labels", "idx1"))


def _read_pair(images_path: Path, labels_path: Path) -> Split:
    """Read one part from its two files."""
    images = idx.read(images_path, ndim=3)
    labels = idx.read(labels_path, ndim=1).astype(np.int32)
    try:
        return Split(images, labels)
    except DataError as exc:
        raise DataError(f"{images_path} and {labels_path} do not fit MNIST or each other: {exc}") from exc


def _find(folder: Path, stem: str, kind: str) -> Path:
    """Find a file by any of the four names in use."""
    names = [f"{stem}{dot}{kind}-ubyte{suffix}" for suffix in ("", ".gz") for dot in ("-", ".")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    state = "holds none of these files" if folder.is_dir() else "is not a directory"
    raise DataError(
        f"{folder} {state}; looked for {', '.join(names)}. Give the directory that holds MNIST's four files, "
        f"or fetch them with trainband.data.mnist.download({str(folder)!r})."
    )


def _is_intact(path: Path, digest: str | None) -> bool:
    """Return whether a file need not be fetched again; without a digest, whether it can be read."""
    try:
        data = read_regular(path, _LARGEST_FILE_BYTES)
    except OSError:
        return False
    if digest is not None:
        return hashlib.sha256(data).hexdigest() == digest
    try:
        idx.parse(data, _ndim(path.name), name=path.name)
    except DataError:
        return False
    return True


def _fetch(url: str, folder: Path, timeout_s: float) -> bytes:
    """Fetch the content of a URL, raising our errors for network failures."""
    by_hand = f"Without a network, copy MNIST's four files to {folder}."
    late = f"{url} sent nothing for {timeout_s} s; try again, or raise timeout_s. {by_hand}"
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"base_url must start with http:// or https://, got {url!r}.")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            data: bytes = response.read(_LARGEST_FILE_BYTES + 1)
            # read(n) silently returns what arrived before a connection broke.
            length = response.headers.get("Content-Length")
    except urllib.error.HTTPError as exc:
        status, reason = exc.code, exc.reason
        exc.close()  # it holds the connection
        raise DataError(f"{url}: the server answered {status} {reason}; check base_url. {by_hand}") from exc
    except TimeoutError as exc:
        raise DeadlineExceeded(late) from exc
    except urllib.error.URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            raise DeadlineExceeded(late) from exc
        raise Unreachable(f"{url} cannot be reached ({exc.reason}). {by_hand}") from exc
    except (OSError, http.client.HTTPException) as exc:
        raise Unreachable(f"{url}: the connection broke ({exc}); try again. {by_hand}") from exc
    if len(data) > _LARGEST_FILE_BYTES:
        raise DataError(f"{url} is over {_LARGEST_FILE_BYTES >> 20} MiB, more than any MNIST file; check base_url.")
    if length is not None and len(data) != int(length):
        raise Unreachable(
            f"{url}: the connection broke after {len(data):,} of {int(length):,} bytes; try again. {by_hand}"
        )
    return data


def _check(data: bytes, name: str, base_url: str, digest: str | None) -> None:
    """Raise DataError unless the content is what was published."""
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and found != digest:
        raise DataError(
            f"{name} from {base_url} has SHA-256 {found}, expected {digest}; it was discarded. Try another base_url."
        )
    idx.parse(data, _ndim(name), name=f"{name} from {base_url}")


def _ndim(name: str) -> int:
    """Return the number of dimensions of a published file."""
    return 3 if "images" in name else 1


def _write_at_once(target: Path, data: bytes) -> None:
    """Write a file atomically: under its name it is either complete or absent."""
    try:
        write_regular(target, data)
    except OSError as exc:
        raise DataError(f"cannot write {target}: {exc.strerror or exc}.") from exc
