"""The Python in README.md and docs/*.md does what it says: each block is run.

A block that cannot be run stands behind a comment that says why:

    <!-- not run: needs three machines -->
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.programs import ROOT, Programs

DEADLINE_S = 150.0
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?(?P<indent> *)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```\s*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of Python."""

    where: str
    code: str
    reason: str
    """Why it is not run; empty where it is."""


def blocks(text: str, name: str) -> list[Block]:
    """The Python blocks of a Markdown text."""
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        indent = len(match["indent"])
        code = "".join(each[indent:] for each in match["code"].splitlines(keepends=True))
        found.append(Block(f"{name}:{line + 1}", "\n" * line + code, match["reason"] or ""))
    return found


def pages() -> list[Path]:
    docs = ROOT / "docs"
    return [
        path for path in (ROOT / "README.md", *sorted([*docs.glob("*.md"), *docs.glob("run/*.md")])) if path.exists()
    ]


BLOCKS = [block for page in pages() for block in blocks(page.read_text(), page.name)]


def test_blocks_are_found() -> None:
    text = (
        "a\n```python\nx = 1\n```\n<!-- not run: needs a GPU -->\n```python\ny\n```\n\n- b\n\n  ```python\n  z\n  ```\n"
    )
    assert [(block.where, block.code.strip(), block.reason) for block in blocks(text, "t.md")] == [
        ("t.md:3", "x = 1", ""),
        ("t.md:7", "y", "needs a GPU"),
        ("t.md:13", "z", ""),
    ]


def test_the_readme_shows_python() -> None:
    if not (ROOT / "README.md").exists():
        pytest.skip("there is no README.md yet")
    assert any(block.where.startswith("README.md:") for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_a_block_runs(block: Block, programs: Programs, tmp_path: Path) -> None:
    if block.reason:
        pytest.skip(f"{block.where} is not run: {block.reason}")
    script = tmp_path / "block.py"
    script.write_text(block.code)  # on the same line as in the page, for tracebacks
    program = programs.python(block.where, str(script), cwd=tmp_path)
    assert program.wait(DEADLINE_S) == 0, program.output
