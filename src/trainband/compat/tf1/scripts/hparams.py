"""`tf.contrib.training.HParams`: settings by name, with types, read from text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

_ASSIGNMENT = re.compile(r"\s*([a-zA-Z_]\w*)\s*(?:\[\s*(\d+)\s*\])?\s*=\s*(\[[^\]]*\]|[^,]*)\s*(?:,|$)")


class HParams:
    """Settings: attributes whose type is that of their first value.

    Args:
      hparam_def: unused.
      model_structure: anything, returned by `get_model_structure`.
      values: the settings.
    """

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **values: Any) -> None:
        del hparam_def
        self._model_structure = model_structure
        self._types: dict[str, tuple[type, bool]] = {}
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add a setting.

        Raises:
          ValueError: there is one of that name, or the value is an empty list.
        """
        if getattr(self, name, None) is not None or name in self._types:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        several = isinstance(value, list | tuple)
        if several and not value:
            raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
        self._types[name] = type(value[0] if several else value), several
        setattr(self, name, list(value) if several else value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Change a setting, to a value of its type.

        Raises:
          KeyError: there is none of that name.
          ValueError: the value is not of its type.
        """
        type_, several = self._types[name]
        if several != isinstance(value, list):
            kind = "a list" if several else "no list"
            raise ValueError(f"The hyperparameter {name} must be {kind}, got {value!r}.")
        cast = [_cast(name, type_, one) for one in value] if several else _cast(name, type_, value)
        setattr(self, name, cast)

    def del_hparam(self, name: str) -> None:
        """Remove a setting, if there is one."""
        if name in self._types:
            delattr(self, name)
            del self._types[name]

    def parse(self, values: str) -> HParams:
        """Change settings as text says: `a=1,b=[2,3],c[0]=4`.

        Raises:
          ValueError: the text is not of this form, or has other names or types.
        """
        at = 0
        while at < len(values):
            found = _ASSIGNMENT.match(values, at)
            if found is None or found.end() == at:
                raise ValueError(f"Malformed hyperparameter value: {values[at:]}")
            at = found.end()
            name, index, text = found.groups()
            if name not in self._types:
                raise ValueError(f"Unknown hyperparameter type for {name}")
            if index is not None:
                listed = list(getattr(self, name))
                listed += [listed[-1]] * (int(index) + 1 - len(listed))
                listed[int(index)] = _cast(name, self._types[name][0], text)
                self.set_hparam(name, listed)
            elif text.startswith("["):
                self.set_hparam(name, [one.strip() for one in text[1:-1].split(",") if one.strip()])
            else:
                self.set_hparam(name, text.strip())
        return self

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Change several settings."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Change the settings that JSON has."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """All settings as JSON."""
        return json.dumps(self.values(), indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """All settings."""
        return {name: getattr(self, name) for name in self._types}

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, or a default."""
        return getattr(self, key) if key in self._types else default

    def get_model_structure(self) -> Any:
        """What was given as `model_structure`."""
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Set what `get_model_structure` returns."""
        self._model_structure = model_structure

    def __contains__(self, key: str) -> bool:
        return key in self._types

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"HParams({self})"


_TRUTH = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}
_READERS: dict[type, Callable[[str], Any]] = {
    bool: _TRUTH.__getitem__, int: int, float: float, str: str, bytes: str.encode, type(None): str,
}  # fmt: skip


def _cast(name: str, type_: type, value: Any) -> Any:
    """A value, perhaps text, as a setting's type; whole numbers become floating-point ones, but not the reverse."""
    if isinstance(value, str) and type_ in _READERS:
        try:
            return _READERS[type_](value)
        except (KeyError, ValueError):
            pass
    elif type_ is type(None) or type(value) is type_:
        return value
    elif type_ is float and type(value) is int:
        return float(value)
    raise ValueError(f"Could not cast hparam '{name}' of type '{type_.__name__}' from value {value!r}")
