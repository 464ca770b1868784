"""Write the tables of names in docs/compat.md from the code: `python tests/compat/make_names.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trainband.compat.tf1.names import NAMES as FIRST
from trainband.compat.tf2.names import NAMES as SECOND

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compat.md"
_ROW = re.compile(r"^\| `(tf[\w.]*)` \| [^|]* \| (.*) \|$", re.MULTILINE)


def sections(text: str) -> dict[int, str]:
    """The parts of the page with the tables of both versions."""
    first = text.index("### Names of TensorFlow 1")
    second = text.index("### Names of TensorFlow 2")
    return {1: text[first:second], 2: text[second : text.index("## ", second + 4)]}


def listed(section: str) -> dict[str, list[str]]:
    """The names of a table, by namespace."""
    return {space: re.findall(r"`([^`]+)`", names) for space, names in _ROW.findall(section)}


def public_names() -> dict[str, set[str]]:
    """The public names of TensorFlow 2, by namespace."""
    lines = (ROOT / "tests" / "compat_tf2" / "data" / "api.txt").read_text(encoding="utf-8").splitlines()
    parts = [line.partition(": ") for line in lines if not line.startswith("#")]
    return {space: set(names.split()) for space, _, names in parts}


def table(names: Mapping[str, Mapping[str, object]], before: Mapping[str, list[str]], public: bool) -> str:
    """The table of a version; what was listed before keeps its order."""
    known = public_names() if public else {}
    rows = []
    for space in [*(one for one in before if one in names), *sorted(one for one in names if one not in before)]:
        kept = [one for one in dict.fromkeys(before.get(space, [])) if one in names[space]]
        every = [*kept, *sorted(one for one in names[space] if one not in kept)]
        there = len(known.get(space, set()) & set(every))
        count = f"{there} of {len(known[space])}" if space in known else str(len(every))
        rows.append(f"| `{space}` | {count} | {' '.join(f'`{one}`' for one in every)} |")
    return "| namespace | how many | names |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def written(text: str) -> str:
    """The page with tables of what is there now."""
    for number, names in ((1, FIRST), (2, SECOND)):
        section = sections(text)[number]
        begin = section.index("| namespace |")
        end = section.rindex(" |\n") + 3
        made = table(names, listed(section), public=number == 2)
        text = text.replace(section, section[:begin] + made + section[end:])
    public = public_names()
    there = sum(len(public[space] & set(SECOND.get(space, ()))) for space in public)
    total = sum(map(len, public.values()))
    return re.sub(
        r"\d+ of the \d+ public names of TensorFlow 2", f"{there} of the {total} public names of TensorFlow 2", text
    )


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
