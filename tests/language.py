"""The check of plain English: words and patterns that do not belong in what people read.

It reads comments, docstrings and messages of the source (of `compat`, whose text follows TensorFlow's, the messages
only), and the pages. `python -m tests.language FOLDER` lists each finding with its place and what to write instead.
In the source, names too are read for the words that the table in `CONTRIBUTING.md` replaces by those of the glossary.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "trainband"
COMPAT = SOURCE / "compat"


@dataclass(frozen=True, slots=True)
class Pattern:
    """What is not written here.

    Attributes:
      expression: finds it, across line breaks.
      instead: what to write.
      example: a text that has it, for the check's own test.
    """

    expression: str
    instead: str
    example: str


PATTERNS: tuple[Pattern, ...] = (
    Pattern(r"where there (?:is|are) none", "without one, if there is none", "the port, or 0 where there is none"),
    Pattern(
        r"(?i)\b(?:nobody|anybody|everybody|somebody|whoever|whom)\b", "no one, anyone, a task that", "nobody waits"
    ),
    Pattern(r"\bso (?:many|much)\b(?! (?:as|that|\w+er)\b)", "this many, this much", "asks for so many bytes"),
    Pattern(
        r"(?<![Tt]here\s)\b(?:is|are|was|were|be) no (?!longer|more|less|other|such|need|way|room|point|use)[a-z`']",
        "is not a",
        "'x' is no tensor",
    ),
    Pattern(r"\bsees? to it\b", "ensures", "the launcher sees to it"),
    Pattern(r"\b(?:go|goes|going|went|gone) on\b", "continues, resumes", "training goes on"),
    Pattern(r"(?i)\bmend(?:s|ed|ing)?\b", "fix", "mend the input"),
    Pattern(r"\b(?:come|comes|came) (?:of|about)\b", "results from, is made", "a stream comes about"),
    Pattern(r"\bno more\b(?! (?:than|\w+s)\b)", "no longer", "it waits no more"),
    Pattern(r"\bany ?more\b(?! (?:than|\w+s)\b)", "no longer", "no one waits any more"),
    Pattern(r"\bthe like\b", "similar ones", "keys and the like"),
    Pattern(r"\bbesides\b[,.;:]|, besides\b", "also, in addition", "besides, it failed"),
    Pattern(r"\bwants? to know\b", "needs", "who wants to know"),
    Pattern(r"\bthat there (?:is|are) not\b", "that does not exist, unknown", "a word that there is not"),
    Pattern(r"\bin words\b", "as text", "the reason, in words"),
    Pattern(r"\bin silence\b|\bwithout a word\b", "silently, without a message", "it hangs in silence"),
    Pattern(r"\bshall\b", "must, will, should", "it shall wait"),
    Pattern("[«»]", "quotation marks or backticks", "the task «worker:0"),
    Pattern(r"\bis there (?:twice|already|again)\b", "exists, is listed twice", "the name is there twice"),
    Pattern(r"\blook(?:s|ed)? whether\b", "checks whether", "looks whether it lives"),
    Pattern(r"\bbut for\b", "except for", "all but for the chief"),
    Pattern(r"\b(?:has|have) (?:it|them|him|her) (?!been|to\b|not\b)[a-z]+(?<!ed)\b", "makes them", "has them end"),
    Pattern(r"(?:\A|[.:] |\n)\s*What (?!is|are|does|do|did|can|if|to|happens)[a-z`]", "a noun", "What a ps knows."),
    Pattern(r"\b(?:of|by|on) (?:ours|yours|theirs)\b", "our own, their own", "a task of yours"),
    Pattern(
        r"\b(?:\w*comput\w*|\w*train\w*|workers|replicas|processes) in step\b", "in lockstep", "workers compute in step"
    ),
    Pattern(r"(?:\A|\n)\s*As `", "Like", "As `threading.Condition`."),
    Pattern(r"\b(?:afresh|anew)\b", "again, from scratch", "it starts afresh"),
    Pattern(
        r"\b(?i:an?|each|every|another|one|any|later|next|last|previous|whole|new|other) training\b"
        r"(?! (?:steps?|loop|jobs?|programs?|runs?|scripts?|streams?|calls?|data|process|function|examples?|tasks?|"
        r"state|operation|batch|loss)\b)",
        "training run",
        "after a training of 30 s",
    ),
    Pattern(r"\. So (?:does|do|did|is|are|was|were|has|have)\b", "subject first", "It ends. So does the ps."),
)


def _rows(page: str, header: str) -> list[list[str]]:
    """The cells of the rows of a page's table, by the start of its header."""
    table = (ROOT / page).read_text(encoding="utf-8").partition(f"\n{header}")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").replace("`", "").split("|")] for line in table.splitlines()[2:]]


TERMS = tuple(term for row in _rows("docs/concepts.md", "| term |") for term in row[0].split(", "))
"""The terms of the glossary."""

REPLACED = tuple(
    Pattern(rf"(?i)\b{word}s?\b", term, word)
    for term, words in _rows("CONTRIBUTING.md", "| write | not |")
    for word in words.split(", ")
)
"""The words that terms of the glossary replace."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One place: `where` is `file:line`, `what` the words, `instead` what to write."""

    where: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what!r}: write {self.instead}"


ALLOWED: frozenset[tuple[str, str]] = frozenset()
"""`(file, words)` that stay: names that others gave, and quotations."""


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression.replace(" ", r"\s+"))


def find(text: str, patterns: Sequence[Pattern] = PATTERNS) -> Iterator[tuple[int, str, str]]:
    """`(offset, words, instead)` of each place in a text."""
    for pattern in patterns:
        for found in _compiled(pattern.expression).finditer(text):
            yield found.start(), " ".join(found[0].split()), pattern.instead


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def texts(path: Path, *, messages_only: bool = False) -> Iterator[tuple[int, str]]:
    """`(line, text)` of all that people read in a file: a page whole; of source, comments, docstrings and messages."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"```.*?```", lambda block: "\n" * block[0].count("\n"), content, flags=re.DOTALL)
        return
    tree = parsed(path)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value):
            continue
        if not (messages_only and id(node) in docstrings):
            yield node.lineno, node.value
    if not messages_only:
        for token in tokenize.generate_tokens(io.StringIO(content).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("# ")


def names(path: Path) -> Iterator[tuple[int, str]]:
    """`(line, words)` of the names that a source file defines and uses: `ShardReplica` is "shard replica"."""
    for node in ast.walk(parsed(path)):
        for field in ("name", "id", "attr", "arg", "module"):
            if isinstance(name := getattr(node, field, None), str):
                parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
                yield getattr(node, "lineno", 1), " ".join(parts).lower()


def files() -> list[Path]:
    """What is read: the source, the programs beside it, and the pages."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    programs = [path for folder in ("bench", "examples") for path in (ROOT / folder).rglob("*.py")]
    return sorted([*SOURCE.rglob("*.py"), *programs, *pages])


def findings(paths: list[Path]) -> list[Finding]:
    """All that is found in files and is not allowed."""
    found = []
    for path in paths:
        name = str(path.relative_to(ROOT))
        is_core = path.is_relative_to(SOURCE) and not path.is_relative_to(COMPAT)
        read = [(*each, PATTERNS) for each in texts(path, messages_only=path.is_relative_to(COMPAT))]
        if is_core:
            read += [(*each, REPLACED) for each in (*texts(path), *names(path))]
        for line, text, patterns in read:
            for offset, what, instead in find(text, patterns):
                if (name, what) not in ALLOWED:
                    found.append(Finding(f"{name}:{line + text.count(chr(10), 0, offset)}", what, instead))
    return found


def main(arguments: list[str]) -> int:
    """Prints what is found in the files or folders named, in all of them by default; returns the exit code."""
    chosen = [Path(argument).resolve() for argument in arguments]
    paths = [path for path in files() if not chosen or any(path.is_relative_to(each) for each in chosen)]
    found = findings(paths)
    for each in found:
        print(each)
    print(f"{len(found)} places in {len(paths)} files to say in plain English")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
