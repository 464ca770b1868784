"""The check of the language finds what it says it finds; `make lint` runs it over everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.language import PATTERNS, Pattern, find, texts


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.instead)
def test_each_pattern_is_found(pattern: Pattern) -> None:
    assert [instead for _, _, instead in find(pattern.example)] == [pattern.instead]


def test_plain_english_is_not_found() -> None:
    text = "There is no ps, and no longer a worker; it is no more than a second late, as many as are needed."
    assert list(find(text)) == []


def test_comments_docstrings_and_messages_are_read(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""One thing."""\nx = 1  # two things\nprint("three things", "three", f"{x} is four")\n')
    assert sorted(text for _, text in texts(source)) == [" is four", "One thing.", "three things", "two things"]
    assert sorted(text for _, text in texts(source, messages_only=True)) == [" is four", "three things"]
