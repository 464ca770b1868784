"""All messages to users, read from the code: `python -m tests.messages FOLDER` prints them as a table.

A message is the text of an error, of a warning, of a line for people or of a record of the log. `{...}` stands for a
value that the program fills in, and `a | b` for two texts of which it chooses one.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.language import COMPAT, ROOT, SOURCE, parsed

_KINDS = {
    **dict.fromkeys("say _say Say say_on_stderr say_once _note tell echo print _complain".split(), "line"),
    **dict.fromkeys("debug info warning error exception".split(), "log"),
    "warn": "warning",
}
_PROPER = frozenset("Arrow Batches Flight JAX Keras Kubernetes Orbax Python Ray Slurm".split())


@dataclass(frozen=True, slots=True)
class Message:
    """One message: `where` is `file:line`, `kind` the error's class, `warning`, `line` or `log`."""

    where: str
    kind: str
    text: str

    def __str__(self) -> str:
        return "\t".join((self.where, self.kind, self.text.replace("\n", "\\n")))


def messages(path: Path, errors: frozenset[str]) -> Iterator[Message]:
    """The messages of a file; `errors` are the classes of errors."""
    for call, names in _calls(parsed(path)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        kind = name if name in errors else _KINDS.get(name)
        texts = (_text(argument, names) for argument in call.args) if kind else ()
        text = next((text for text in texts if text and " " in text.strip()), None)
        if kind and text:
            yield Message(f"{path.relative_to(ROOT)}:{call.lineno}", kind, text)


def classes(paths: list[Path]) -> tuple[frozenset[str], frozenset[str]]:
    """The names of all classes of errors, of Python and of these files; and of those that are trainband's own."""
    defined = [node for path in paths for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    bases = {one.name: {ast.unparse(base).rpartition(".")[2] for base in one.bases} for one in defined}

    def below(known: set[str]) -> frozenset[str]:
        while more := {name for name, of in bases.items() if of & known} - known:
            known |= more
        return frozenset(known)

    python = {name for name, one in vars(builtins).items() if isinstance(one, type) and issubclass(one, BaseException)}
    return below(python), below({"TrainbandError"})


def faults(message: Message, own: frozenset[str]) -> Iterator[str]:
    """What of a message's shape differs from that of all others; `own` are the classes of trainband's errors."""
    plain = re.sub(r"\{(?:[^{}]|\{[^{}]*\})*\}", "0", message.text).rstrip()
    sentences = len(re.findall(r"[.?!](?= [A-Z]|$)", plain))
    first = re.match(r"[A-Z][a-z]+(?= )", plain)
    if first and first[0] not in _PROPER and message.kind in own:
        yield "an error begins with a small letter, as it follows a colon"
    if message.kind in own and not plain.endswith((".", "?", "0")):
        yield "an error ends with a full stop"
    if message.kind in ("line", "warning", "log"):
        if sentences == 1 and plain.endswith(".") and not plain.startswith("0 "):
            yield "a line of one sentence has no full stop"
        if sentences and not plain.endswith((".", "?", "0", ")")):
            yield "each of several sentences has a full stop"
    if re.search(r"""'0'|"0"|`0`""", plain):
        yield "a value is quoted by !r"


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, Mapping[str, ast.expr]]]:
    """Each call, in order, with what the function around it assigns to names."""
    left: list[tuple[ast.AST, Mapping[str, ast.expr]]] = [(tree, {})]
    while left:
        node, names = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assigned = [inner for inner in ast.walk(node) if isinstance(inner, ast.Assign)]
            names = {target.id: one.value for one in assigned for target in one.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.Call):
            yield node, names
        left += [(child, names) for child in reversed([*ast.iter_child_nodes(node)])]


def _text(node: ast.expr, names: Mapping[str, ast.expr]) -> str | None:
    """The text that an expression has; None if it has none of its own."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else ast.unparse(ast.JoinedStr([part]))[2:-1]
                for part in parts
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            texts = _text(left, names), _text(right, names)
            pairs = zip(texts, (left, right), strict=True)
            return None if texts == (None, None) else "".join(t or f"{{{ast.unparse(side)}}}" for t, side in pairs)
        case ast.BinOp(left=template, op=ast.Mod()) | ast.Call(func=ast.Attribute(value=template, attr="format")):
            return _text(template, names)
        case ast.IfExp(body=one, orelse=other):
            texts = _text(one, names), _text(other, names)
            return None if None in texts else " | ".join(map(str, texts))
        case ast.Name(id=name) if name in names:
            return _text(names[name], {})
    return None


def main(arguments: list[str]) -> int:
    """Prints the messages of the files or folders named, of all by default, with their faults; 1 if there are any."""
    chosen = [Path(argument).resolve() for argument in arguments] or [SOURCE]
    paths = sorted(SOURCE.rglob("*.py"))
    errors, own = classes(paths)
    found = 0
    for path in paths:
        for message in messages(path, errors) if any(map(path.is_relative_to, chosen)) else ():
            wrong = [] if path.is_relative_to(COMPAT) else list(faults(message, own))
            print(message, *(f"    ^ {fault}" for fault in wrong), sep="\n")
            found += len(wrong)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
