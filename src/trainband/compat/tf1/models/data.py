# ruff: noqa: SLF001 - layers and models are of one package
"""`tf.keras.utils`, `tf.keras.datasets` and `tf.keras.preprocessing`: arrays for a model. Nothing is downloaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainband.data import load
from trainband.runtime.regular_files import fixed_path, regular_file
from trainband.runtime.waiting import say_on_stderr

Pair = tuple[NDArray[Any], NDArray[Any]]


def to_categorical(y: Any, num_classes: int | None = None, dtype: Any = "float32") -> NDArray[Any]:
    """Numbers of classes as rows of zeros and a one."""
    numbers = np.asarray(y, dtype=int)
    shape = numbers.shape[:-1] if numbers.ndim > 1 and numbers.shape[-1] == 1 else numbers.shape
    count = num_classes or int(numbers.max()) + 1
    return np.eye(count, dtype=np.dtype(getattr(dtype, "as_numpy_dtype", dtype)))[numbers.ravel()].reshape(
        *shape, count
    )


def normalize(x: Any, axis: int = -1, order: int = 2) -> NDArray[Any]:
    """With the norm 1 along an axis."""
    norms = np.atleast_1d(np.linalg.norm(x, order, axis))
    norms[norms == 0] = 1
    return np.asarray(x / np.expand_dims(norms, axis))


def get_file(fname: str, origin: str, cache_subdir: str = "datasets", cache_dir: Any = None, **more: Any) -> str:
    """The path of a file in Keras's cache.

    Raises:
      FileNotFoundError: it is not there; nothing is downloaded.
    """
    del more
    path = _cache(cache_dir) / cache_subdir / fname
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist, and trainband downloads nothing: fetch {origin} yourself.")
    return str(path)


def _cache(directory: Any = None) -> Path:
    return Path(directory or Path.home() / ".keras")


class Sequence_:  # noqa: N801 - `Sequence` is taken
    """Batches by their numbers. Subclasses define `__len__` and `__getitem__`."""

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def on_epoch_end(self) -> None:
        """An epoch has ended."""


# --- data sets


def load_mnist(path: str = "mnist.npz") -> tuple[Pair, Pair]:
    """MNIST from Keras's cache, as uint8[n, 28, 28]; if it is not there, the small digits in the package."""
    file = Path(path) if Path(path).is_absolute() else _cache() / "datasets" / path
    if file.exists():
        with regular_file(file) as opened, np.load(opened, allow_pickle=False) as found:
            return (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])
    say_on_stderr(f"no {file}: load_data uses the small digits in the package and downloads nothing")
    data = load()

    def pair(split: Any) -> Pair:
        return np.asarray(split.images, np.uint8), np.asarray(split.labels, np.uint8)

    return pair(data.train), pair(data.test)


def _cached(name: str) -> Callable[..., tuple[Pair, Pair]]:
    def load_data(*_: Any, **__: Any) -> tuple[Pair, Pair]:
        file = _cache() / "datasets" / f"{name}.npz"
        if not file.exists():
            raise FileNotFoundError(
                f"{file} does not exist, and trainband downloads nothing: write x_train, y_train, x_test and y_test "
                "into it with np.savez."
            )
        with regular_file(file) as opened, np.load(opened, allow_pickle=False) as found:
            return (found["x_train"], found["y_train"]), (found["x_test"], found["y_test"])

    load_data.__doc__ = f"{name} from Keras's cache."
    return load_data


load_fashion_mnist = _cached("fashion_mnist")
load_cifar10 = _cached("cifar10")
load_cifar100 = _cached("cifar100")

# --- sequences and text


def pad_sequences(
    sequences: Any,
    maxlen: int | None = None,
    dtype: Any = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: Any = 0.0,
) -> NDArray[Any]:
    """Sequences of one length: cut, or filled with a value."""
    length = maxlen if maxlen is not None else max((len(one) for one in sequences), default=0)
    inner = next((np.shape(one)[1:] for one in sequences if len(one)), ())
    found = np.full((len(sequences), length, *inner), value, dtype=dtype)
    for row, one in enumerate(sequences):
        cut = np.asarray(one[-length:] if truncating == "pre" else one[:length], dtype=dtype)
        if length and len(cut):
            if padding == "pre":
                found[row, length - len(cut) :] = cut
            else:
                found[row, : len(cut)] = cut
    return found


_FILTERS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'


def text_to_word_sequence(text: str, filters: str = _FILTERS, lower: bool = True, split: str = " ") -> list[str]:
    """The words of a text."""
    text = (text.lower() if lower else text).translate(str.maketrans(filters, split[:1] * len(filters)))
    return [word for word in text.split(split) if word]


class Tokenizer:
    """Numbers words by how frequent they are, from 1."""

    def __init__(
        self,
        num_words: int | None = None,
        filters: str = _FILTERS,
        lower: bool = True,
        split: str = " ",
        char_level: bool = False,
        oov_token: str | None = None,
        **more: Any,
    ) -> None:
        del more
        self.num_words, self.filters, self.lower, self.split = num_words, filters, lower, split
        self.char_level, self.oov_token = char_level, oov_token
        self.word_counts: dict[str, int] = {}
        self.word_index: dict[str, int] = {}
        self.index_word: dict[int, str] = {}
        self.document_count = 0

    def _words(self, text: Any) -> list[str]:
        if isinstance(text, list):
            return [word.lower() if self.lower else word for word in text]
        if self.char_level:
            return list(text.lower() if self.lower else text)
        return text_to_word_sequence(text, self.filters, self.lower, self.split)

    def fit_on_texts(self, texts: Any) -> None:
        """Counts the words of texts."""
        for text in texts:
            self.document_count += 1
            for word in self._words(text):
                self.word_counts[word] = self.word_counts.get(word, 0) + 1
        by_count = sorted(self.word_counts, key=lambda word: -self.word_counts[word])
        words = by_count if self.oov_token is None else [self.oov_token, *by_count]
        self.word_index = {word: number for number, word in enumerate(words, 1)}
        self.index_word = {number: word for word, number in self.word_index.items()}

    def texts_to_sequences(self, texts: Any) -> list[list[int]]:
        """The numbers of the words of texts; words that are not known are left out, or get the number for those."""
        other = None if self.oov_token is None else self.word_index.get(self.oov_token)
        found = []
        for text in texts:
            numbers = [self.word_index.get(word, other) for word in self._words(text)]
            limited = [other if one and self.num_words and one >= self.num_words else one for one in numbers]
            found.append([one for one in limited if one is not None])
        return found

    def texts_to_matrix(self, texts: Any, mode: str = "binary") -> NDArray[Any]:
        """A row for each text: which words are in it, or how often.

        Raises:
          ValueError: another mode than `binary`, `count` and `freq`.
        """
        if mode not in ("binary", "count", "freq"):
            raise ValueError(f"texts_to_matrix: the mode {mode!r} is not supported.")
        size = self.num_words or len(self.word_index) + 1
        found = np.zeros((len(texts), size))
        for row, numbers in enumerate(self.texts_to_sequences(texts)):
            np.add.at(found[row], numbers, 1.0)
            if mode == "freq" and numbers:
                found[row] /= len(numbers)
        return (found > 0).astype(float) if mode == "binary" else found


# --- images


def load_img(path: Any, grayscale: bool = False, color_mode: str = "rgb", target_size: Any = None, **more: Any) -> Any:
    """An image of Pillow's from a file, resized to (height, width) if asked for.

    Raises:
      ImportError: Pillow is not there.
    """
    try:
        from PIL import Image
    except ImportError as exc:
        raise ImportError("load_img needs Pillow: pip install pillow.") from exc
    modes = {"rgb": "RGB", "grayscale": "L", "rgba": "RGBA"}
    with fixed_path(path) if isinstance(path, str | os.PathLike) else contextlib.nullcontext(path) as readable:
        image = Image.open(readable).convert("L" if grayscale else modes[color_mode])
    kinds = {"nearest": Image.Resampling.NEAREST, "bilinear": Image.Resampling.BILINEAR}
    kind = kinds.get(more.get("interpolation", "nearest"), Image.Resampling.NEAREST)
    return image if target_size is None else image.resize((target_size[1], target_size[0]), kind)


def img_to_array(img: Any, data_format: str | None = None, dtype: Any = "float32") -> NDArray[Any]:
    """An image of Pillow's as an array [height, width, channels]."""
    found = np.asarray(img, dtype)
    found = found[:, :, None] if found.ndim == 2 else found
    return np.moveaxis(found, -1, 0) if data_format == "channels_first" else found


class ImageDataGenerator:
    """Batches of images [height, width, channels]: scaled, turned, moved, sheared, enlarged and flipped at random.

    Raises:
      NotImplementedError: statistics of the data, or changes of colour.
    """

    def __init__(
        self,
        *,
        rotation_range: float = 0,
        width_shift_range: float = 0.0,
        height_shift_range: float = 0.0,
        shear_range: float = 0.0,
        zoom_range: Any = 0.0,
        fill_mode: str = "nearest",
        cval: float = 0.0,
        horizontal_flip: bool = False,
        vertical_flip: bool = False,
        rescale: float | None = None,
        preprocessing_function: Callable[[Any], Any] | None = None,
        **more: Any,
    ) -> None:
        wanted = [name for name, value in more.items() if value and name not in ("data_format", "dtype", "zca_epsilon")]
        if wanted:
            raise NotImplementedError(f"ImageDataGenerator: {', '.join(wanted)} is not supported.")
        self._rescale, self._function = rescale, preprocessing_function
        self._flips = vertical_flip, horizontal_flip
        self._turn, self._shear = np.deg2rad(rotation_range), np.deg2rad(shear_range)
        self._shifts = height_shift_range, width_shift_range
        self._zoom: tuple[Any, Any] = (
            (1 - zoom_range, 1 + zoom_range) if isinstance(zoom_range, int | float) else tuple(zoom_range)
        )
        self._filled = {"mode": _FILLS[fill_mode], "cval": cval}

    def fit(self, x: Any, augment: bool = False, rounds: int = 1, seed: int | None = None) -> None:
        """Nothing is learned from the data."""

    def random_transform(self, x: Any, seed: int | None = None) -> NDArray[Any]:
        """An image, changed at random."""
        return self._changed(np.asarray(x), np.random.RandomState(seed))

    def _changed(self, image: NDArray[Any], random: np.random.RandomState) -> NDArray[Any]:
        turn, shear = random.uniform(-self._turn, self._turn), random.uniform(-self._shear, self._shear)
        shifts = [
            random.uniform(-one, one) * (size if one < 1 else 1)
            for one, size in zip(self._shifts, image.shape, strict=False)
        ]
        zooms = random.uniform(self._zoom[0], self._zoom[1], 2) if self._zoom != (1, 1) else np.ones(2)
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        matrix = matrix @ np.array([[1, -np.sin(shear)], [0, np.cos(shear)]]) @ np.diag(zooms)
        image = image.astype(np.float32)
        if not np.array_equal(matrix, np.eye(2)) or any(shifts):
            from scipy.ndimage import affine_transform  # which JAX needs as well

            middle = (np.array(image.shape[:2]) - 1) / 2
            offset = middle + np.array(shifts) - matrix @ middle
            planes = np.moveaxis(image, -1, 0)
            image = np.stack([affine_transform(one, matrix, offset, order=1, **self._filled) for one in planes], -1)
        for axis, flip in enumerate(self._flips):
            if flip and random.rand() < 0.5:
                image = np.flip(image, axis)
        image = image if self._function is None else np.asarray(self._function(image))
        return image if self._rescale is None else image * np.float32(self._rescale)

    def flow(
        self, x: Any, y: Any = None, batch_size: int = 32, shuffle: bool = True, seed: int | None = None, **more: Any
    ) -> Any:
        """Batches without end, of arrays."""
        del more
        return _Flow(self, np.asarray(x), None if y is None else np.asarray(y), batch_size, shuffle, seed)


_FILLS = {"nearest": "nearest", "constant": "constant", "reflect": "reflect", "wrap": "wrap"}


class _Flow(Sequence_):
    def __init__(
        self, generator: Any, x: Any, y: Any, batch_size: int, shuffle: bool, seed: int | None
    ) -> None:  # fmt: skip
        self._generator, self._x, self._y, self.batch_size, self._shuffle = generator, x, y, batch_size, shuffle
        self._random = np.random.RandomState(seed)
        self.n = len(x)
        self._order = np.arange(self.n)
        self._next = 0
        self.on_epoch_end()

    def __len__(self) -> int:
        return -(-self.n // self.batch_size)

    def __getitem__(self, index: int) -> Any:
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        images = np.stack([self._generator._changed(self._x[row], self._random) for row in rows])
        return images if self._y is None else (images, self._y[rows])

    def on_epoch_end(self) -> None:
        """Shuffles."""
        if self._shuffle:
            self._order = self._random.permutation(self.n)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if self._next == len(self):
            self._next = 0
            self.on_epoch_end()
        self._next += 1
        return self[self._next - 1]

    next = __next__
