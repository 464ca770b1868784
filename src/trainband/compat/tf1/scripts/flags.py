"""`tf.app`: `flags` and `run`, as scripts of TensorFlow 1 use them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_TRUE, _FALSE = ("true", "t", "1", "yes", "y"), ("false", "f", "0", "no", "n")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors end the process as TensorFlow's do, with code 1."""

    def error(self, message: str) -> NoReturn:
        print(
            f"FATAL Flags parsing error: {message}\nPass --helpshort or --helpfull to see help on flags.",
            file=sys.stderr,
        )
        raise SystemExit(1)


class FlagValues:
    """The flags that a script defines. The command line is parsed when the first one is read."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forgets every flag."""
        super().__setattr__("_parser", _Parser(allow_abbrev=False))
        super().__setattr__("_values", {})
        super().__setattr__("_parsed", False)
        super().__setattr__("_checks", [])
        super().__setattr__("_required", set())
        super().__setattr__("_rest", [])

    def __call__(self, argv: Sequence[str], known_only: bool = False) -> list[str]:
        """Parse an argument list, whose first element is the program, and return what is left."""
        found, rest = self._parser.parse_known_args(list(argv)[1:])
        unknown = [one for one in rest if one.startswith("--") and one != "--"]
        if unknown and not known_only:
            self._parser.error(f"Unknown command line flag '{unknown[0].lstrip('-').partition('=')[0]}'")
        self._values.update(vars(found))
        super().__setattr__("_parsed", True)
        super().__setattr__("_rest", [argv[0], *(one for one in rest if one != "--")])
        for name in self._required:
            if self._values.get(name) is None:
                self._parser.error(f"Flag --{name} must have a value other than None.")
        for name, check, message in self._checks:
            if not check(self._values[name]):
                self._parser.error(f"flag --{name}={self._values[name]}: {message}")
        return list(self._rest)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not self._parsed:
            self(sys.argv, known_only=True)
        if name not in self._values:
            raise AttributeError(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if not self._parsed:
            self(sys.argv, known_only=True)
        self._values[name] = value

    def __contains__(self, name: str) -> bool:
        return any(name == action.dest for action in self._parser._actions)  # noqa: SLF001 - argparse has no other way

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def flag_values_dict(self) -> dict[str, Any]:
        """All values by name."""
        return dict(self._values)

    @property
    def rest(self) -> list[str]:
        """The program and the arguments that are no flags."""
        if not self._parsed:
            self(sys.argv, known_only=True)
        return list(self._rest)

    def mark_as_parsed(self) -> None:
        """Use the values that are set, and ignore the command line."""
        if not self._parsed:
            self([sys.argv[0]])

    def define(self, name: str, default: Any, text: str | None, kind: Callable[[str], Any], **more: Any) -> None:
        """Defines a flag.

        Raises:
          ValueError: there is one of that name.
        """
        if name in self:
            raise ValueError(f"The flag '{name}' is defined twice.")
        shown = (text or "").replace("%", "%%")
        self._parser.add_argument(f"--{name}", dest=name, default=default, help=shown, type=kind, **more)
        self._values[name] = default
        super().__setattr__("_parsed", False)

    def define_switch(self, name: str, default: Any, text: str | None) -> None:
        """Defines a flag that is on or off: `--name`, `--noname`, `--name=false`."""
        self.define(name, default, text, _as_bool, nargs="?", const=True)
        self._parser.add_argument(f"--no{name}", dest=name, action="store_false", default=argparse.SUPPRESS)

    def require(self, name: str) -> None:
        """Require a flag."""
        self._required.add(name)

    def check(self, name: str, check: Callable[[Any], bool], message: str) -> None:
        """Require that a function accepts the value of a flag."""
        self._checks.append((name, check, message))


def _as_bool(text: Any) -> bool:
    value = str(text).lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise argparse.ArgumentTypeError(f"invalid value for a boolean flag: {text!r}")


FLAGS = FlagValues()


def _defining(kind: Callable[[str], Any]) -> Callable[..., None]:
    def define(name: str, default: Any = None, help: str | None = "", **_: Any) -> None:  # noqa: A002
        value = default if default is None or not isinstance(default, str) else kind(default)
        FLAGS.define(name, value, help, kind)

    define.__doc__ = "Defines a flag."
    return define


DEFINE_string = _defining(str)
DEFINE_integer = _defining(int)
DEFINE_float = _defining(float)
DEFINE_list = _defining(lambda text: [one for one in text.split(",") if one])


def DEFINE_bool(name: str, default: Any = None, help: str | None = "", **_: Any) -> None:  # noqa: A002, N802
    """Defines a flag that is on or off."""
    FLAGS.define_switch(name, default, help)


DEFINE_boolean = DEFINE_bool


def DEFINE_enum(name: str, default: Any, enum_values: Sequence[str], help: str | None = "", **_: Any) -> None:  # noqa: A002, N802
    """Define a flag with a fixed set of values."""
    FLAGS.define(name, default, help, str, choices=list(enum_values))


def mark_flag_as_required(name: str) -> None:
    """Require a flag."""
    FLAGS.require(name)


def mark_flags_as_required(names: Sequence[str]) -> None:
    """Require several flags."""
    for name in names:
        FLAGS.require(name)


def validator(flag_name: str, message: str = "Flag validation failed", flag_values: Any = None) -> Callable[..., Any]:
    """A decorator for a function that validates the value of a flag."""
    del flag_values

    def note(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
        FLAGS.check(flag_name, check, message)
        return check

    return note


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Reads the flags, calls `main(argv)` and ends the process with what it returns."""
    rest = FLAGS(list(argv or sys.argv))
    function = main or sys.modules["__main__"].main
    raise SystemExit(function(rest))
