"""The tests that run on the oldest Python are one of each folder."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDERS = sorted({path.parent for path in Path(__file__).parent.rglob("test_*.py")})


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_folder_has_one(folder: Path) -> None:
    sources = [path.read_text(encoding="utf-8") for path in folder.glob("test_*.py")]
    assert any("pytest.mark.smoke" in source for source in sources), f"mark a test in {folder}"
