"""Recognise scripts of Python 2, convert them, and explain errors that come from them.

The conversion is that of fissix, or on Python 3.11 and 3.12 that of the standard library's lib2to3, and in addition the
division of whole numbers.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from trainband.runtime.regular_files import read_regular

_WORDS = re.compile(
    r"^\s*print\s+[^=(\s]|^\s*print\s*$|print\s*>>|^\s*exec\s+['\"\w]|^\s*raise\s+[\w.]+\s*,|except\s+[^:]+,\s*\w+\s*:"
    r"|<>|`|\b\d+[lL]\b|\b0[0-7]+\b|\bur['\"]|^\s*def\s+\w+\([^)]*\([^)]*\)\s*[,)][^=]*:"
)
_COOKIE = re.compile(r"^([ \t\f]*#.*?coding[:=][ \t]*)[-\w.]+", re.ASCII)
"""Of PEP 263."""
MOST_BYTES = 16 << 20
"""Of a script: the largest generated ones have some."""
_MESSAGES = ("Missing parentheses in call to", "multiple exception types", "leading zeros", "inconsistent use of tabs")
_NAMES = "xrange unicode raw_input long basestring reduce unichr file execfile reload cmp buffer apply intern coerce"
_METHODS = "iteritems iterkeys itervalues has_key viewitems viewkeys viewvalues next decode encode"
_MODULES = (
    "cPickle Queue ConfigParser StringIO cStringIO urllib2 urlparse commands __builtin__ httplib HTMLParser cookielib"
    " SocketServer Tkinter tkMessageBox tkFileDialog BaseHTTPServer SimpleHTTPServer thread anydbm copy_reg sets"
    " exceptions"
)
_ADVICE = "run it with --convert (trainband run --tensorflow --convert, or python -m trainband.compat --convert)"


class Python2Error(SyntaxError):
    """A script is Python 2."""


def read_source(path: Path) -> str:
    """Return a script's text, in the encoding that it names itself.

    Raises:
      OSError: it cannot be read, or is no regular file, or has more than `MOST_BYTES`.
      SyntaxError: it is not in its encoding, or there is no such encoding.
    """
    file = io.BytesIO(read_regular(path, MOST_BYTES))
    encoding, _ = tokenize.detect_encoding(file.readline)
    file.seek(0)
    try:
        return io.TextIOWrapper(file, encoding).read()
    except (UnicodeError, LookupError) as exc:
        raise SyntaxError(f"{path} is not in {encoding} ({exc}): name its encoding in its first line.") from None


class NoConverter(ImportError):
    """The library that converts Python 2 is not installed."""


def parsed(source: str, filename: str, convert: bool = False, in_package: bool = False) -> ast.Module:
    """Return a script's syntax tree.

    Args:
      convert: convert it from Python 2 first.
      in_package: it is a module of a package, whose imports look into the package first in Python 2.

    Raises:
      Python2Error: it is not Python 3.
      SyntaxError: it is not Python at all.
    """
    if convert:
        source = converted(source, filename, in_package)
    try:
        return _tree(source, filename)
    except SyntaxError as exc:
        line = exc.lineno or 0
        text = (source.splitlines() or [""])[line - 1].strip()
        if convert or not (any(one in str(exc) for one in _MESSAGES) or _WORDS.search(text)):
            raise
        raise Python2Error(f"{filename}:{line}: this is Python 2 ({text}): {_ADVICE}.") from None


def _tree(source: str, filename: str = "<script>") -> ast.Module:
    """`ast.parse`, for which a source is not Python, too, that it cannot parse."""
    try:
        return ast.parse(source, filename)
    except (RecursionError, MemoryError):
        raise SyntaxError(f"{filename} is nested too deeply to be parsed.") from None
    except ValueError as exc:  # null bytes, and halves of surrogate pairs
        raise SyntaxError(f"{filename} is not Python: {exc}.") from None


def converted(source: str, filename: str, in_package: bool = False) -> str:
    """Return a script of Python 2 as one of Python 3.

    Raises:
      NoConverter: fissix is not installed.
      SyntaxError: the script is not Python 2 either.
    """
    library = _library()
    errors: Any = importlib.import_module(f"{library}.pgen2.parse").ParseError
    text = source if source.endswith("\n") else f"{source}\n"
    try:
        tree = _refactoring(library, _is_python3(text), in_package).refactor_string(text, filename)
    except (errors, importlib.import_module(f"{library}.pgen2.tokenize").TokenError) as exc:
        raise SyntaxError(f"{filename} is neither Python 3 nor Python 2: {exc}") from exc
    except RecursionError:
        raise SyntaxError(f"{filename} is nested too deeply to be converted.") from None
    return _without_tabs(str(tree))


def as_utf8(source: str) -> bytes:
    """A script's text as a file of UTF-8, which says so if the text names an encoding."""
    lines = source.split("\n", 2)
    lines[:2] = [_COOKIE.sub(r"\g<1>utf-8", line) for line in lines[:2]]
    return "\n".join(lines).encode()


def _is_python3(source: str) -> bool:
    try:
        _tree(source)
    except SyntaxError:
        return False
    return True


def _without_tabs(source: str) -> str:
    """Return a script whose lines do not mix tabs and spaces, which Python 2 allowed."""
    try:
        _tree(source)
    except TabError:
        return "".join(
            line[: len(line) - len(line.lstrip())].expandtabs() + line.lstrip() if line.strip() else line
            for line in source.splitlines(keepends=True)
        )
    except SyntaxError:
        pass
    return source


@cache
def _library() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for name in ("fissix", "lib2to3"):
            try:
                importlib.import_module(f"{name}.refactor")
            except ImportError:
                continue
            return name
    raise NoConverter(
        "Converting Python 2 needs fissix, which is not installed: pip install 'trainband[python2]'.", name="fissix"
    )


@cache
def _refactoring(library: str, print_is_function: bool, in_package: bool) -> Any:
    """Return the tool: all fixers of the library, and one for divisions."""
    refactor: Any = importlib.import_module(f"{library}.refactor")
    division = _division(library)

    class Refactoring(refactor.RefactoringTool):  # type: ignore[misc]
        def get_fixers(self) -> Any:
            before, after = super().get_fixers()
            return before, [*after, division(self.options, self.fixer_log)]

        def log_error(self, *_: Any, **__: Any) -> None:
            raise  # it is called while an error is handled

        def log_message(self, *_: Any) -> None:
            pass

        log_debug = log_message

    fixers = refactor.get_fixers_from_package(f"{library}.fixes")
    if not in_package:  # it would be taken for one wherever there is an `__init__.py`
        fixers.remove(f"{library}.fixes.fix_import")
    return Refactoring(fixers, {"print_function": print_is_function})


def _division(library: str) -> Any:
    """Return the fixer that writes `old_div(a, b)` for `a / b`, unless the script has Python 3's division."""
    base: Any = importlib.import_module(f"{library}.fixer_base")
    make: Any = importlib.import_module(f"{library}.fixer_util")
    tree: Any = importlib.import_module(f"{library}.pytree")
    pygram: Any = importlib.import_module(f"{library}.pygram")

    def is_float(node: Any) -> bool:
        return bool(re.fullmatch(r"(\d+\.\d*|\.\d+)(e[-+]?\d+)?|\d+e[-+]?\d+", str(node).strip()))

    def is_division(node: Any) -> bool:
        operands, operators = node.children[::2], node.children[1::2]
        if node.type == pygram.python_symbols.term:
            return any(str(one).strip() == "/" for one in operators) and not any(map(is_float, operands))
        return (
            node.type == pygram.python_symbols.expr_stmt
            and len(node.children) == 3
            and str(operators[0]).strip() == "/="
            and not is_float(operands[1])
        )

    class Division(base.BaseFix):  # type: ignore[misc]
        order = "post"

        def start_tree(self, whole: Any, filename: str) -> None:
            super().start_tree(whole, filename)
            self.new = bool(re.search(r"^from __future__ import .*\bdivision\b", str(whole), re.MULTILINE))

        def match(self, node: Any) -> bool:
            return not self.new and isinstance(node, tree.Node) and is_division(node)

        def transform(self, node: Any, results: Any) -> Any:
            del results
            make.touch_import("trainband.compat.python2", "old_div", node)
            prefix = node.prefix
            parts = [one.clone() for one in node.children]
            left = parts[0]
            left.prefix = ""
            for operator, right in zip(parts[1::2], parts[2::2], strict=True):
                if str(operator).strip() in ("/", "/="):
                    divisor = right.clone()
                    divisor.prefix = " "
                    quotient = make.Call(make.Name("old_div"), [left.clone(), make.Comma(), divisor])
                    whole = str(operator).strip() == "/="
                    left = make.Assign(left, quotient) if whole else quotient
                else:
                    left = tree.Node(pygram.python_symbols.term, [left, operator, right])
            left.prefix = prefix
            return left

    return Division


def old_div(dividend: Any, divisor: Any) -> Any:
    """Python 2's `/`: without a remainder where both are whole numbers."""
    if _is_whole(dividend) and _is_whole(divisor):
        return dividend // divisor
    return dividend / divisor


def _is_whole(value: Any) -> bool:
    if isinstance(value, int | np.integer):
        return True
    dtype = getattr(value, "dtype", None)
    kind = getattr(dtype, "is_integer", None)
    return bool(kind) if isinstance(kind, bool) else isinstance(value, np.ndarray) and value.dtype.kind in "iu"


def explain(exc: BaseException) -> None:
    """Add a note to an error that a script gets because it is Python 2."""
    text = str(exc)
    found = ""
    if isinstance(exc, NameError) and exc.name in _NAMES.split():
        found = f"{exc.name} is Python 2"
    elif isinstance(exc, ModuleNotFoundError) and exc.name in _MODULES.split():
        found = f"the module {exc.name} is Python 2"
    elif isinstance(exc, AttributeError) and exc.name in _METHODS.split() and "tensorflow" not in text:
        found = f".{exc.name}() is Python 2"
    elif isinstance(exc, AttributeError) and isinstance(exc.obj, ModuleType) and exc.name in ("maketrans", "letters"):
        found = f"{exc.obj.__name__}.{exc.name} is Python 2"
    elif isinstance(exc, TypeError) and ("for >>:" in text or "'float' object cannot be interpreted" in text):
        found = "print >>file and whole numbers from / are Python 2"
    elif isinstance(exc, SyntaxError) and any(one in text for one in _MESSAGES):
        found = f"{exc.filename} is Python 2"
    if found:
        exc.add_note(f"{found}: {_ADVICE}.")
    if isinstance(exc, UnicodeDecodeError) and "ascii" in text:
        exc.add_note("A pickle of Python 2 needs pickle.load(file, encoding='latin1').")
    if isinstance(exc, TypeError) and "only 0-dimensional arrays" in text:
        exc.add_note("NumPy 2 makes no number of an array of one element: write value.item().")
