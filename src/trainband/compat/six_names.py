"""`six`, which TensorFlow 1 brought along and scripts import, where it is not installed: Python 3's side of it."""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.util
import io
import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MODULES = {
    "builtins": "builtins", "configparser": "configparser", "copyreg": "copyreg", "cPickle": "pickle",
    "http_client": "http.client", "queue": "queue", "urllib": "urllib", "urllib.error": "urllib.error",
    "urllib.parse": "urllib.parse", "urllib.request": "urllib.request", "html_parser": "html.parser",
}  # fmt: skip
_MOVES: dict[str, Any] = {
    "xrange": range, "range": range, "zip": zip, "map": map, "filter": filter, "input": input,
    "reduce": functools.reduce, "zip_longest": itertools.zip_longest, "filterfalse": itertools.filterfalse,
    "StringIO": io.StringIO, "cStringIO": io.StringIO, "intern": sys.intern, "reload_module": importlib.reload,
}  # fmt: skip


def add_metaclass(metaclass: type) -> Callable[[type], type]:
    """A decorator that makes a class again, of a metaclass."""

    def again(cls: type) -> type:
        body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
        made: type = metaclass(cls.__name__, cls.__bases__, body)
        return made

    return again


def with_metaclass(meta: type, *bases: type) -> type:
    """A base class of a metaclass."""
    made: type = meta("temporary", bases or (object,), {})
    return made


def reraise(kind: Any, value: BaseException | None, traceback: Any = None) -> None:
    """Raise an error again."""
    raise (kind() if value is None else value).with_traceback(traceback)


def ensure_str(s: Any, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Text or bytes as text."""
    return s.decode(encoding, errors) if isinstance(s, bytes) else str(s)


def ensure_binary(s: Any, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    """Text or bytes as bytes."""
    return s.encode(encoding, errors) if isinstance(s, str) else bytes(s)


_NAMES: dict[str, Any] = {
    "PY2": False, "PY3": True, "string_types": (str,), "integer_types": (int,), "class_types": (type,),
    "text_type": str, "binary_type": bytes, "StringIO": io.StringIO, "BytesIO": io.BytesIO,
    "iteritems": lambda d, **_: iter(d.items()), "iterkeys": lambda d, **_: iter(d.keys()),
    "itervalues": lambda d, **_: iter(d.values()), "viewitems": lambda d: d.items(), "viewkeys": lambda d: d.keys(),
    "viewvalues": lambda d: d.values(), "next": next, "advance_iterator": next, "unichr": chr, "print_": print,
    "callable": callable, "exec_": builtins.exec, "b": lambda s: s.encode("latin-1"), "u": str,
    "add_metaclass": add_metaclass, "with_metaclass": with_metaclass, "reraise": reraise,
    "ensure_str": ensure_str, "ensure_text": ensure_str, "ensure_binary": ensure_binary,
    "get_function_code": lambda f: f.__code__, "wraps": functools.wraps,
}  # fmt: skip


def install_six() -> None:
    """Make `import six` work, if it does not."""
    if "six" in sys.modules or importlib.util.find_spec("six") is not None:
        return
    six, moves = ModuleType("six", __doc__), ModuleType("six.moves", __doc__)
    vars(six).update(_NAMES, moves=moves)
    vars(moves).update(_MOVES)
    found = {"six": six, "six.moves": moves}
    for name, real in _MODULES.items():
        found[f"six.moves.{name}"] = importlib.import_module(real)
        if "." not in name:
            setattr(moves, name, found[f"six.moves.{name}"])
    six.__path__ = moves.__path__ = []  # they are packages
    sys.modules.update(found)
