"""Optional: an element, or the fact that there is none."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainband.compat.tf1.graphs.errors import InvalidArgumentError
from trainband.compat.tf2.data.specs import spec_of_array
from trainband.compat.tf2.data.structure import map_structure
from trainband.compat.tf2.data.values import array_from, tensor_of
from trainband.compat.tf2.eager.tensor import Tensor


class Optional:
    """A value that may not be there."""

    def __init__(self, value: Any, has: bool, spec: Any = None) -> None:
        self._value, self._has, self._spec = value, has, spec

    @staticmethod
    def from_value(value: Any) -> Optional:
        """One that has a value."""
        arrays = map_structure(array_from, value)
        return Optional(map_structure(tensor_of, arrays), True, map_structure(spec_of_array, arrays))

    @staticmethod
    def empty(element_spec: Any) -> Optional:
        """One that has none."""
        return Optional(None, False, element_spec)

    def has_value(self, name: str | None = None) -> Tensor:
        """Whether it has a value."""
        del name
        return Tensor(np.asarray(self._has))

    def get_value(self, name: str | None = None) -> Any:
        """The value.

        Raises:
          InvalidArgumentError: it has none.
        """
        del name
        if not self._has:
            raise InvalidArgumentError(None, None, "The given optional does not have a value.")
        return self._value

    @property
    def element_spec(self) -> Any:
        """What is known of the value."""
        return self._spec() if callable(self._spec) else self._spec
