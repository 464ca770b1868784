"""Lookup layers: from words or numbers to their places in a vocabulary, and back. They compute on the host."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.inside import keras
from trainband.runtime.regular_files import READ_WHOLE, read_regular

_MODES = ("int", "one_hot", "multi_hot", "binary", "count")


class _Vocabulary:
    """What a layer knows: its tokens, their numbers, and while it adapts, how often each has come."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.places: dict[Any, int] = {}
        self.counts: collections.Counter[Any] = collections.Counter()


class Lookup(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """A layer that looks tokens up in a vocabulary.

    Its numbers begin with that of the mask, if there is one, and those of unknown tokens.

    Args:
      max_tokens: the most that `adapt` keeps, with the special ones.
      num_oov_indices: how many numbers unknown tokens have.
      mask_token: what stands for nothing.
      oov_token: what stands for unknown ones in the vocabulary.
      vocabulary: the tokens, or a file with one in each line.
      invert: whether tokens are looked up by numbers.
      output_mode: `int`; or `one_hot`, `multi_hot`, `count`: a row of the vocabulary's size.
    """

    is_of_strings = True

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: Any = None,
        oov_token: Any = None,
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        settings.pop("sparse", None)
        settings.pop("encoding", None)
        settings.pop("vocabulary_dtype", None)
        dtype = settings.pop("dtype", None)
        super().__init__(name=name, dtype="float32", **settings)
        if output_mode not in _MODES or idf_weights is not None:
            raise ValueError(f"{type(self).__name__}: output_mode must be one of {_MODES}, got {output_mode!r}.")
        if invert and output_mode != "int":
            raise ValueError(f"`output_mode` must be 'int' when `invert` is true. Received: output_mode={output_mode}")
        del dtype
        self.max_tokens = max_tokens
        self.num_oov_indices = num_oov_indices
        self.mask_token = mask_token
        self.oov_token = oov_token
        self.invert = invert
        self.output_mode = "multi_hot" if output_mode == "binary" else output_mode
        self.pad_to_max_tokens = pad_to_max_tokens
        self.built = True
        self._known = _Vocabulary()
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    # --- the vocabulary

    def _token(self, value: Any) -> Any:
        raise NotImplementedError

    def _specials(self) -> list[Any]:
        mask = [self._token(self.mask_token)] if self.mask_token is not None and self.output_mode == "int" else []
        return [*mask, *[self._token(self.oov_token)] * self.num_oov_indices]

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Takes a vocabulary, with or without the special tokens.

        Raises:
          ValueError: a token is listed twice, or there are too many.
        """
        del idf_weights
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = read_regular(vocabulary, READ_WHOLE).decode().splitlines()
        values = vocabulary.numpy() if hasattr(vocabulary, "numpy") else vocabulary
        tokens = [self._token(one) for one in values]
        specials = self._specials()
        if specials and tokens[: len(specials)] == specials:
            tokens = tokens[len(specials) :]
        twice = [token for token, count in collections.Counter(tokens).items() if count > 1]
        if twice:
            raise ValueError(
                "The passed vocabulary has at least one repeated term. Please uniquify your dataset. The repeated "
                f"terms are: {twice[:5]}"
            )
        if self.max_tokens is not None and len(tokens) + len(specials) > self.max_tokens:
            raise ValueError(
                f"Attempted to set a vocabulary larger than the maximum vocab size. Received vocabulary size is "
                f"{len(tokens) + len(specials)}; `max_tokens` is {self.max_tokens}."
            )
        self._known.tokens = tokens
        self._known.places = {token: len(specials) + place for place, token in enumerate(tokens)}

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The tokens, by their numbers."""
        return [*(self._specials() if include_special_tokens else ()), *self._known.tokens]

    def vocabulary_size(self) -> int:
        """How many numbers there are."""
        return len(self._specials()) + len(self._known.tokens)

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Makes a vocabulary of the tokens of some data, those that come most often first."""
        del batch_size
        self.reset_state()
        for number, batch in enumerate(_batches(data)):
            if steps is not None and number >= steps:
                break
            self.update_state(batch)
        self.finalize_state()

    def update_state(self, data: Any) -> None:
        """Counts the tokens of a batch."""
        self._known.counts.update(self._token(one) for one in _flat(data))

    def finalize_state(self) -> None:
        """Makes the vocabulary of what has been counted."""
        specials = self._specials()
        for token in {*specials, *([] if self.mask_token is None else [self._token(self.mask_token)])}:
            self._known.counts.pop(token, None)
        tokens = [
            token for token, _ in sorted(self._known.counts.items(), key=lambda one: (one[1], one[0]), reverse=True)
        ]
        most = None if self.max_tokens is None else self.max_tokens - len(specials)
        self.set_vocabulary(tokens[:most])

    def reset_state(self) -> None:
        """Begins to count anew."""
        self._known.counts = collections.Counter()

    # --- what it computes

    def __call__(self, inputs: Any, **_: Any) -> Any:
        """The numbers of tokens, or the tokens of numbers."""
        if isinstance(inputs, keras.KerasTensor):
            return super().__call__(inputs)
        return self.look_up(inputs)

    def call(self, inputs: Any) -> Any:
        """See `__call__`."""
        return self.look_up(inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and dtype of the result."""
        if self.output_mode == "int":
            return keras.KerasTensor(inputs.shape, "string" if self.invert and self.is_of_strings else "int64")
        shape = inputs.shape if self.output_mode == "one_hot" else inputs.shape[:-1]
        if self.output_mode == "one_hot" and shape and shape[-1] == 1:
            shape = shape[:-1]
        return keras.KerasTensor((*shape, self._depth()), "float32")

    def look_up(self, inputs: Any) -> Tensor:
        """The result for a tensor, an array or a list.

        Raises:
          InvalidArgumentError: a token is unknown, and there are no numbers for unknown ones.
        """
        from trainband.compat.tf1.graphs.errors import InvalidArgumentError

        values = np.asarray(convert(inputs).numpy())
        if self.invert:
            tokens = self.get_vocabulary()
            unknown = self._token(self.oov_token)
            found = [tokens[int(one)] if 0 <= int(one) < len(tokens) else unknown for one in values.reshape(-1)]
            return convert(_shaped(found, values.shape, self.is_of_strings))
        tokens = [self._token(one) for one in values.reshape(-1)]
        places = np.array([self._place(token) for token in tokens], np.int64).reshape(values.shape)
        if (places < 0).any():
            raise InvalidArgumentError(
                None,
                None,
                f"When `num_oov_indices=0` all inputs should be in vocabulary, found OOV values "
                f"{[one for one, place in zip(tokens, places.reshape(-1), strict=True) if place < 0][:5]}, consider "
                "setting `num_oov_indices=1`.",
            )
        return convert(places if self.output_mode == "int" else self._encoded(places))

    def _place(self, token: Any) -> int:
        found = self._known.places.get(token)
        if found is not None:
            return found
        masks = int(self.mask_token is not None and self.output_mode == "int")
        if masks and token == self._token(self.mask_token):
            return 0
        if not self.num_oov_indices:
            return -1
        if self.num_oov_indices == 1:
            return masks
        return masks + zlib.crc32(str(token).encode()) % self.num_oov_indices

    def _depth(self) -> int:
        return self.max_tokens if self.pad_to_max_tokens and self.max_tokens else self.vocabulary_size()

    def _encoded(self, places: Any) -> Any:
        rows = np.eye(self._depth(), dtype=np.float32)[places]
        if self.output_mode == "one_hot":
            return rows[..., 0, :] if places.ndim and places.shape[-1] == 1 else rows
        if not places.ndim:
            return rows
        total = rows.sum(-2)
        return np.minimum(total, 1) if self.output_mode == "multi_hot" else total

    def get_config(self) -> dict[str, Any]:
        """What makes it anew."""
        names = "max_tokens num_oov_indices mask_token oov_token invert output_mode pad_to_max_tokens".split()
        own = {name: getattr(self, name) for name in names}
        return {**own, "vocabulary": list(self._known.tokens) or None, "name": self.name}


class StringLookup(Lookup):
    """The numbers of words."""

    def __init__(self, max_tokens: Any = None, num_oov_indices: int = 1, mask_token: Any = None,
                 oov_token: Any = "[UNK]", **settings: Any) -> None:  # fmt: skip
        super().__init__(max_tokens, num_oov_indices, mask_token, oov_token, **settings)

    def _token(self, value: Any) -> str:
        return value.decode() if isinstance(value, bytes) else str(value)


class IntegerLookup(Lookup):
    """The numbers of integers."""

    is_of_strings = False

    def __init__(self, max_tokens: Any = None, num_oov_indices: int = 1, mask_token: Any = None, oov_token: Any = -1,
                 **settings: Any) -> None:  # fmt: skip
        older = {"max_values": max_tokens, "num_oov_values": num_oov_indices, "mask_value": mask_token,
                 "oov_value": oov_token}  # fmt: skip
        super().__init__(*(settings.pop(name, value) for name, value in older.items()), **settings)

    def _token(self, value: Any) -> int:
        return int(value)


def _shaped(values: list[Any], shape: Any, strings: bool) -> Any:
    found = np.empty(len(values), object if strings else np.int64)
    found[:] = [one.encode() if isinstance(one, str) else one for one in values]
    return found.reshape(shape)


def _batches(data: Any) -> Iterable[Any]:
    return data if hasattr(data, "element_spec") else [data]


def _flat(data: Any) -> Iterable[Any]:
    return np.asarray(data.numpy() if hasattr(data, "numpy") else data, dtype=object).reshape(-1)
