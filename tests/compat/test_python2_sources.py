"""Sources that no converter should trip over: what cannot be read or parsed is a `SyntaxError` or an `OSError`."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from trainband.compat.__main__ import main
from trainband.compat.python2 import MOST_BYTES, parsed, read_source
from trainband.compat.sources import read_files
from trainband.runtime.regular_files import UnusableFile


@pytest.mark.parametrize("convert", [False, True])
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = " + "-" * 20_000 + "1\n", "nested too deeply"),
        ("x = " + "[" * 1500 + "]" * 1500 + "\n", "nested too deeply|too many nested parentheses"),
        ("x = 'a\0b'\n", "null bytes|bad input|neither"),
        ("x = '\ud800'\n", "is not Python"),
        ("print '''" + "a" * 1000, "unterminated|neither Python 3 nor Python 2|this is Python 2"),
    ],
    ids=["operators", "brackets", "null", "surrogate", "unterminated"],
)
def test_what_cannot_be_parsed_is_a_syntax_error(source: str, words: str, convert: bool) -> None:
    with pytest.raises(SyntaxError, match=words):
        parsed(source, "script.py", convert)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"# coding: no-such-encoding\n", "unknown encoding"),
        (b"# coding: rot13\nx = 1\n", "is not in rot13|unknown encoding"),
        (b"x = '\xe9'\n", "invalid or missing encoding|is not in utf-8"),
        (b"x = 1\n" * 3 + b"y = '\xe9'\n", "is not in utf-8"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "encoding problem"),
    ],
)
def test_what_is_not_in_its_encoding_is_a_syntax_error(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_bytes(data)
    with pytest.raises(SyntaxError, match=words):
        read_source(tmp_path / "script.py")


def test_a_script_is_a_regular_file_of_bounded_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.py")
    with pytest.raises(UnusableFile):
        read_source(tmp_path / "fifo.py")
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UnusableFile):
        read_source(tmp_path / "huge.py")


def test_more_dots_than_directories_name_no_module(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(f"from {'.' * 300} import passwd\n")
    assert list(read_files(tmp_path / "script.py").trees) == [tmp_path / "script.py"]


def test_a_converted_script_says_the_encoding_that_it_is_in(tmp_path: Path) -> None:
    source = "#!/usr/bin/python\n# -*- coding: latin-1 -*-\nname = u'caf\xe9'\nprint name\n"
    (tmp_path / "script.py").write_bytes(source.encode("latin-1"))
    assert main(["--convert-to", str(tmp_path / "new.py"), str(tmp_path / "script.py")]) == 0
    made = (tmp_path / "new.py").read_bytes()
    assert b"# -*- coding: utf-8 -*-" in made
    namespace: dict[str, object] = {}
    exec(compile(ast.parse(made), "new.py", "exec"), namespace)
    assert namespace["name"] == "caf\xe9"
