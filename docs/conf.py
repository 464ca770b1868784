"""Configuration of Sphinx for `make docs`. Nothing here needs the network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from trainband.version import VERSION

os.environ.setdefault("KERAS_BACKEND", "jax")  # autodoc imports trainband.keras

project = "trainband"
author = "the trainband authors"
release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"trainband {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False

myst_heading_anchors = 3
myst_enable_extensions = ["attrs_inline"]

default_role = "py:obj"  # `Trainer` in a docstring is a link where there is such a name, and code where there is not
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

_OUTSIDE = {
    "../bench/RESULTS.md": "results.md",
    "../bench/TRIED.md": "tried.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
}
"""Files outside docs/ that are also pages of the site."""

_FROM_OUTSIDE = {"results": "bench", "tried": "bench", "changelog": ".", "contributing": "."}
"""Pages of the site that include a file from this folder of the repository."""


def _follow_links(_: object, __: str, source: list[str]) -> None:
    """Redirects links to files of the repository to pages of the site."""
    text = source[0]
    for path, page in _OUTSIDE.items():
        text = text.replace(f"]({path}", f"]({page}")
    source[0] = text


def _follow_included_links(_: object, __: Path, parent: str, source: list[str]) -> None:
    """Does the same in an included file, whose links are relative to its own folder."""
    if parent not in _FROM_OUTSIDE:
        return
    docs = Path(__file__).parent
    folder = docs.parent / _FROM_OUTSIDE[parent]

    def moved(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        relative = Path(os.path.relpath(folder / target, docs)).as_posix()
        return f"]({_OUTSIDE.get(relative, relative)}{anchor})"

    source[0] = re.sub(r"\]\((?!\w+:|#)(?P<target>[^)#]+)(?P<anchor>#[^)]*)?\)", moved, source[0])


_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)(\w?)")


def _mark_code(_: object, __: str, ___: str, ____: object, _____: object, lines: list[str]) -> None:
    """Converts Markdown code marks in docstrings: a name may be a link, anything else is literal."""

    def marked(match: re.Match[str]) -> str:
        code, after = match.groups()
        mark = "`" if re.fullmatch(r"[A-Za-z_][\w.]*", code) else "``"
        return f"{mark}{code}{mark}" + (f"\\ {after}" if after else "")

    lines[:] = [_CODE.sub(marked, line) for line in lines]


def _skip(_: object, __: str, ___: str, member: Any, skip: bool, ____: object) -> bool | None:
    """Leaves out methods whose docstring only refers elsewhere."""
    text = getattr(member, "__doc__", None) or ""
    return True if skip or text.startswith("See `") else None


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", _follow_links)
    app.connect("include-read", _follow_included_links)
    app.connect("autodoc-process-docstring", _mark_code, priority=100)  # before napoleon
    app.connect("autodoc-skip-member", _skip)
