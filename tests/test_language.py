"""The check of the language finds what it says it finds; `make lint` runs it over everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.language import COMPAT, PATTERNS, REPLACED, SOURCE, TERMS, Pattern, find, names, texts


@pytest.mark.parametrize("pattern", [*PATTERNS, *REPLACED], ids=lambda pattern: pattern.example)
def test_each_pattern_is_found(pattern: Pattern) -> None:
    patterns = REPLACED if pattern in REPLACED else PATTERNS
    assert [instead for _, _, instead in find(pattern.example, patterns)] == [pattern.instead]


def test_plain_english_is_not_found() -> None:
    text = "There is no ps, and no longer a worker; it is no more than a second late, as many as are needed."
    assert list(find(text)) == []


def test_comments_docstrings_and_messages_are_read(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text('"""One thing."""\nx = 1  # two things\nprint("three things", "three", f"{x} is four")\n')
    assert sorted(text for _, text in texts(source)) == [" is four", "One thing.", "three things", "two things"]
    assert sorted(text for _, text in texts(source, messages_only=True)) == [" is four", "three things"]


def test_the_words_of_names_are_read(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("class UCXLeader:\n    def step_down(self, the_card): self._old = the_card\n")
    assert {words for _, words in names(source)} == {"ucx leader", "step down", "self", "the card", "old"}


def test_each_term_of_the_glossary_occurs_in_the_code() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if not path.is_relative_to(COMPAT)]
    read = (text for path in paths for _, text in (*texts(path), *names(path)))
    code = "\n".join(" ".join(text.lower().split()).replace("-", " ") for text in read)
    missing = [term for term in TERMS if not re.search(rf"\b{term.replace('-', ' ')}s?\b", code)]
    assert len(TERMS) > 40
    assert missing == []
