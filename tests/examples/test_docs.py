"""The pages of the documentation: links lead somewhere, the README is one screen, and words are those of the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.programs import ROOT
from tests.test_layers import LAYERS

import trainband

DOCS = ROOT / "docs"
BOOK = sorted([*DOCS.glob("*.md"), *(DOCS / "run").glob("*.md")])
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
    *BOOK,
    *sorted((ROOT / "bench").glob("*.md")),
]
_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_INCLUDE = re.compile(r"^```\{include\} (\S+)\n```", re.MULTILINE)
METAPHORS = re.compile(
    r"\b(seats?|keepers?|reigns?|petitions?|luggage|pulses?|vigil|outlook|crown(ed)?|wardens?|signs? of life"
    r"|life signs?|(goes|go|going|gone|went) home)\b",
    re.IGNORECASE,
)
"""Words of our own for what the field has words for; the names of files and classes, which are code, do not count."""


def prose(text: str) -> str:
    """A Markdown text without its fenced blocks."""
    return _FENCE.sub("", text)


def anchors(text: str) -> set[str]:
    """What `#...` may say of a page, as GitHub and MyST make it from the headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(text)):
        slug = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
        number = next(n for n in range(len(found) + 1) if (f"{slug}-{n}" if n else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


def broken(page: Path, text: str) -> list[str]:
    """The links of a page that lead nowhere in this repository; those to the network are not followed."""
    wrong = []
    for target in (match["target"] for match in _LINK.finditer(prose(text))):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = page if not path else page.parent / path
        if not found.exists():
            wrong.append(f"{target}: there is no such file")
        elif anchor and anchor not in anchors(text if found == page else found.read_text(encoding="utf-8")):
            wrong.append(f"{target}: the page has no such heading")
    return wrong


def test_what_is_a_broken_link(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `run` (twice)\n\n## Same\n\n## Same\n\n```\n# no heading\n```\n")
    text = "[a](other.md#a-run-twice) [b](other.md#same-1) [c](https://x) [d](#here)\n\n# Here\n\n`` ` ``\n"
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken(page, text) == []
    text = "[a](gone.md) [b](other.md#no-heading) [d](#there)\n\n```\n[e](in-code.md)\n```\n"
    assert [one.partition(":")[0] for one in broken(page, text)] == [
        "gone.md",
        "other.md#no-heading",
        "#there",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_words_are_those_of_the_field(page: Path) -> None:
    lines = prose(page.read_text(encoding="utf-8")).splitlines()
    assert [line for line in lines if METAPHORS.search(_CODE.sub("", line))] == []


def test_every_page_is_in_the_contents() -> None:
    listed = {
        index.parent / f"{name}.md"
        for index in (DOCS / "index.md", DOCS / "run" / "index.md")
        for block in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(encoding="utf-8"), re.DOTALL)
        for name in re.findall(r"^[a-z]\S*$", block, re.MULTILINE)
    }
    assert listed == {*BOOK} - {DOCS / "index.md"}


def test_what_a_page_includes_is_there() -> None:
    included = [
        (page.parent / path).resolve() for page in BOOK for path in _INCLUDE.findall(page.read_text(encoding="utf-8"))
    ]
    assert included
    assert all(path.exists() for path in included)


def test_the_reference_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    modules = {"__version__", "cluster", "data", "errors", "rows", "TrainbandError"}  # their names stand one by one
    assert [n for n in trainband.__all__ if n not in modules and f":: trainband.{n}\n" not in text] == []


def test_what_the_reference_documents_is_there() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    missing = []
    for target in re.findall(r"auto(?:class|function):: (trainband\S+)", text):
        *home, name = target.split(".")
        path = ROOT.joinpath("src", *home)
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        if not re.search(rf"^ *(class|def|from .* import .*) ?\b{name}\b", source, re.MULTILINE):
            missing.append(target)
    assert missing == []


def test_the_readme_is_one_screen_and_has_the_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for command in ("make demo", "make test"):
        assert re.search(rf"^{command}\b", text, re.MULTILINE), command


ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
PLACES = (ROOT / "src" / "trainband", ROOT)


def files_of(text: str) -> dict[str, Path | None]:
    """The files that a text names, and where they are, if they are."""
    named = re.findall(r"`([\w/]+/\w+\.py)`", text)
    return {name: next((place / name for place in PLACES if (place / name).is_file()), None) for name in named}


def test_every_file_that_the_architecture_names_exists() -> None:
    found = files_of(ARCHITECTURE)
    assert len(found) > 100
    assert [name for name, path in found.items() if path is None] == []
    folders = re.findall(r"`([\w/]+)/`", ARCHITECTURE)
    assert [name for name in folders if not any((place / name).is_dir() for place in PLACES)] == []


def unfounded(step: str) -> list[str]:
    """The names in a step of a walk that stand in none of the files which it names."""
    source = "".join(path.read_text(encoding="utf-8") for path in files_of(step).values() if path is not None)
    names = {name for code in re.findall(r"`([A-Za-z_][\w.]*)`", step) for name in code.split(".")}
    return sorted(name for name in names if not re.search(rf"\b{name}\b", source))


def test_a_name_that_is_gone_would_be_found() -> None:
    assert unfounded("1. `train/session.py`: `MonitoredSession.run` calls `Gone.run`.") == ["Gone"]


def test_the_walks_name_what_stands_in_their_files() -> None:
    steps = re.findall(r"^\d+\. .*(?:\n   .*)*", ARCHITECTURE, re.MULTILINE)
    assert len(steps) > 50
    assert {step: names for step in steps if (names := unfounded(step))} == {}


def test_the_architecture_has_the_layers_in_their_order() -> None:
    assert " ← ".join(LAYERS) in " ".join(ARCHITECTURE.split())
    assert all(re.search(rf"^  {layer}(/|\.py) ", ARCHITECTURE, re.MULTILINE) for layer in LAYERS)
