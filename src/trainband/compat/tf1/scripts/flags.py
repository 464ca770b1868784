"""`tf.app`: `flags` and `run`, over absl's flags, as TensorFlow 1.5 and later have them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from absl import flags as absl_flags
from absl import logging as absl_logging
from absl.flags import DuplicateFlagError as DuplicateFlagError
from absl.flags import Error as Error
from absl.flags import FlagValues as FlagValues
from absl.flags import IllegalFlagValueError as IllegalFlagValueError
from absl.flags import UnparsedFlagAccessError as UnparsedFlagAccessError
from absl.flags import UnrecognizedFlagError as UnrecognizedFlagError
from absl.flags import ValidationError as ValidationError
from absl.flags import adopt_module_key_flags as adopt_module_key_flags
from absl.flags import declare_key_flag as declare_key_flag
from absl.flags import disclaim_key_flags
from absl.flags import mark_bool_flags_as_mutual_exclusive as mark_bool_flags_as_mutual_exclusive
from absl.flags import mark_flag_as_required as mark_flag_as_required
from absl.flags import mark_flags_as_mutual_exclusive as mark_flags_as_mutual_exclusive
from absl.flags import mark_flags_as_required as mark_flags_as_required
from absl.flags import multi_flags_validator as multi_flags_validator
from absl.flags import register_multi_flags_validator as register_multi_flags_validator
from absl.flags import register_validator as register_validator
from absl.flags import validator as validator

from trainband.runtime.waiting import say_on_stderr

disclaim_key_flags()  # a flag belongs to the script that defines it

for _flag in absl_flags.FLAGS.flags_by_module_dict()[absl_logging.__name__]:
    _flag.allow_override = True  # `log_dir`, `verbosity`: a script that defines one, even by absl, has the last word

_OLD_WORDS = {"flag_name": "name", "default_value": "default", "docstring": "help"}
_HELP = ("help", "helpshort", "helpfull")


class Flags:
    """absl's flags, which are parsed when the first one is read. They are shared with scripts that import absl."""

    def __init__(self) -> None:
        super().__setattr__("_old", False)

    def __call__(self, argv: Sequence[str], known_only: bool = False) -> list[str]:
        """Parse an argument list, whose first element is the program, and return what is left."""
        rest: list[str] = absl_flags.FLAGS(list(argv), known_only=known_only)
        return rest

    def __getattr__(self, name: str) -> Any:
        if name == "__flags":
            return self.flag_values_dict() if self._old else {one: absl_flags.FLAGS[one] for one in absl_flags.FLAGS}
        if name in absl_flags.FLAGS:
            self._parse(sys.argv)
        return getattr(absl_flags.FLAGS, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(absl_flags.FLAGS, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(absl_flags.FLAGS, name)

    def __getitem__(self, name: str) -> Any:
        return absl_flags.FLAGS[name]

    def __contains__(self, name: str) -> bool:
        return name in absl_flags.FLAGS

    def __iter__(self) -> Iterator[str]:
        return iter(absl_flags.FLAGS)

    def __len__(self) -> int:
        return len(absl_flags.FLAGS)

    def __dir__(self) -> list[str]:
        return dir(absl_flags.FLAGS)

    def _parse_flags(self, args: Sequence[str] | None = None) -> None:
        """Parse the command line, as TensorFlow 1.4 did; from now on `__flags` has the values of the flags."""
        super().__setattr__("_old", True)
        self._parse(sys.argv if args is None else [sys.argv[0], *args])

    @staticmethod
    def _parse(argv: Sequence[str]) -> None:
        if not absl_flags.FLAGS.is_parsed():
            absl_flags.FLAGS(list(argv), known_only=True)

    def forget(self) -> None:
        """Forget every flag that was defined here; those of libraries stay."""
        super().__setattr__("_old", False)
        for name in _defined:
            if name in absl_flags.FLAGS and not _is_absls(name):
                delattr(absl_flags.FLAGS, name)
        _defined.clear()
        absl_flags.FLAGS.unparse_flags()


FLAGS = Flags()
_defined: set[str] = set()


def _is_absls(name: str) -> bool:
    return str(absl_flags.FLAGS.find_module_defining_flag(name)).startswith("absl")


def _as_ever(define: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of absl's take the arguments' old names, and define flags that absl itself has, like `log_dir`."""

    @functools.wraps(define)
    def defining(*arguments: Any, **keywords: Any) -> Any:
        keywords = {_OLD_WORDS.get(name, name): value for name, value in keywords.items()}
        if isinstance(keywords.get("flag_values"), Flags):
            del keywords["flag_values"]
        if len(arguments) + ("help" in keywords) + ("default" in keywords) + ("name" in keywords) < 3:
            keywords.setdefault("help", "")
        name = arguments[0] if arguments else keywords["name"]
        if _is_absls(name):
            keywords["allow_override"] = True
        made = define(*arguments, **keywords)
        _defined.add(name)
        return made

    return defining


DEFINE_string = _as_ever(absl_flags.DEFINE_string)
DEFINE_integer = _as_ever(absl_flags.DEFINE_integer)
DEFINE_float = _as_ever(absl_flags.DEFINE_float)
DEFINE_bool = DEFINE_boolean = _as_ever(absl_flags.DEFINE_boolean)
DEFINE_list = _as_ever(absl_flags.DEFINE_list)
DEFINE_spaceseplist = _as_ever(absl_flags.DEFINE_spaceseplist)
DEFINE_enum = _as_ever(absl_flags.DEFINE_enum)
DEFINE_enum_class = _as_ever(absl_flags.DEFINE_enum_class)
DEFINE_multi = _as_ever(absl_flags.DEFINE_multi)
DEFINE_multi_string = _as_ever(absl_flags.DEFINE_multi_string)
DEFINE_multi_integer = _as_ever(absl_flags.DEFINE_multi_integer)
DEFINE_multi_float = _as_ever(absl_flags.DEFINE_multi_float)
DEFINE_multi_enum = _as_ever(absl_flags.DEFINE_multi_enum)
DEFINE_alias = _as_ever(absl_flags.DEFINE_alias)


def run(main: Callable[[list[str]], Any] | None = None, argv: Sequence[str] | None = None) -> NoReturn:
    """Read the flags, call `main(argv)` and end the process with what it returns.

    Unknown flags are left in `argv`, as in TensorFlow 1.15; a line says so.
    """
    for name in _HELP:
        if name not in absl_flags.FLAGS:
            absl_flags.DEFINE_boolean(name, False, "Show the flags.", allow_override=True)
    try:
        rest = FLAGS(list(argv or sys.argv), known_only=True)
    except Error as exc:
        shown = f"FATAL Flags parsing error: {exc}\nPass --helpshort or --helpfull to see help on flags."
        print(shown, file=sys.stderr)
        raise SystemExit(1) from None
    if any(getattr(absl_flags.FLAGS, name) is True for name in _HELP):
        print(sys.modules["__main__"].__doc__ or "", absl_flags.FLAGS.main_module_help(), sep="\n")
        raise SystemExit(1)
    unknown = [one for one in rest[1:] if one.startswith("-") and one.strip("-")]
    if unknown:
        say_on_stderr(f"WARNING: the script has no flags {' '.join(unknown)}; they are left to its main function")
    function = main or sys.modules["__main__"].main
    raise SystemExit(function(rest))
