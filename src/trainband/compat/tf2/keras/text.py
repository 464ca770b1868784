"""TextVectorization: from text to the numbers of its words, on the host."""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from typing import Any

import numpy as np

from trainband.compat.tf2.eager.execute import convert
from trainband.compat.tf2.eager.tensor import Tensor
from trainband.compat.tf2.keras.inside import keras
from trainband.compat.tf2.keras.lookup import StringLookup

_PUNCTUATION = re.compile(f"[{re.escape(string.punctuation)}]")


class TextVectorization(keras.layers.Layer):  # type: ignore[misc, name-defined]
    """Splits text into words, and gives their numbers: 0 fills up, 1 is an unknown word.

    Args:
      max_tokens: the most that `adapt` keeps, with these two.
      standardize: `lower_and_strip_punctuation`, `lower`, `strip_punctuation`, `None`, or a function of a tensor.
      split: `whitespace`, `character`, `None`, or a function of a tensor.
      output_mode: `int`; or `multi_hot` or `count`: a row of the vocabulary's size.
      output_sequence_length: words of each text, cut or filled up.
      vocabulary: the words, or a file with one in each line.
    """

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: Any = "lower_and_strip_punctuation",
        split: Any = "whitespace",
        ngrams: Any = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        for one in ("idf_weights", "sparse", "ragged", "encoding", "dtype"):
            settings.pop(one, None)
        super().__init__(name=name, **settings)
        if ngrams is not None:
            raise ValueError("TextVectorization: ngrams= is not supported here; split the text by a function.")
        self.standardize = standardize
        self.split = split
        self.output_mode = output_mode
        self.output_sequence_length = output_sequence_length
        self.built = True
        mask = "" if output_mode == "int" else None
        # Not a layer of this one: Keras would ask for its variables.
        self._lookup = (StringLookup(max_tokens, 1, mask, vocabulary=vocabulary, output_mode=output_mode,
                                     pad_to_max_tokens=pad_to_max_tokens),)  # fmt: skip

    def adapt(self, data: Any, batch_size: int | None = None, steps: int | None = None) -> None:
        """Makes a vocabulary of the words of some text."""
        del batch_size
        lookup = self._lookup[0]
        lookup.reset_state()
        for number, batch in enumerate(data if hasattr(data, "element_spec") else [data]):
            if steps is not None and number >= steps:
                break
            for words in self._words(batch):
                lookup.update_state(words)
        lookup.finalize_state()

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """The words, by their numbers."""
        found: list[Any] = self._lookup[0].get_vocabulary(include_special_tokens)
        return found

    def vocabulary_size(self) -> int:
        """How many numbers there are."""
        return int(self._lookup[0].vocabulary_size())

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Takes a vocabulary."""
        self._lookup[0].set_vocabulary(vocabulary, idf_weights)

    def __call__(self, inputs: Any, **_: Any) -> Any:
        """The numbers of the words of each text."""
        if isinstance(inputs, keras.KerasTensor):
            return super().__call__(inputs)
        return self.call(inputs)

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and dtype of the result."""
        if self.output_mode == "int":
            return keras.KerasTensor((inputs.shape[0], self.output_sequence_length), "int64")
        return keras.KerasTensor((inputs.shape[0], self.vocabulary_size()), "float32")

    def call(self, inputs: Any) -> Tensor:
        """See `__call__`."""
        single = not convert(inputs).aval[0]
        rows = self._words(inputs)
        if self.output_mode != "int":
            found = [self._lookup[0].look_up(np.array(words or [""], object)).numpy() for words in rows]
            return convert(np.stack(found)[0] if single else np.stack(found))
        length = self.output_sequence_length or max(map(len, rows), default=0)
        filled = np.full((len(rows), length), "", object)
        for number, words in enumerate(rows):
            filled[number, : len(words[:length])] = words[:length]
        return self._lookup[0].look_up(filled[0] if single else filled)

    def _words(self, inputs: Any) -> list[list[str]]:
        tensor = convert(inputs)
        if callable(self.standardize):
            tensor = convert(self.standardize(tensor))
        if callable(self.split):
            return [[one.decode() for one in row] for row in _rows(self.split(tensor))]
        texts = [one.decode() if isinstance(one, bytes) else str(one) for one in np.asarray(tensor.numpy()).reshape(-1)]
        return [_SPLITS[self.split](self._standard(text)) for text in texts]

    def _standard(self, text: str) -> str:
        if callable(self.standardize) or self.standardize is None:
            return text
        if "lower" in self.standardize:
            text = text.lower()
        return _PUNCTUATION.sub("", text) if "strip_punctuation" in self.standardize else text


def _rows(value: Any) -> Any:
    return value.to_list() if hasattr(value, "to_list") else np.asarray(value.numpy())


_SPLITS: dict[Any, Callable[[str], list[str]]] = {
    "whitespace": str.split,
    "character": list,
    None: lambda text: [text],
}
