"""What commands print on terminals of four widths is what their files say; `python tests/cli/golden.py` writes them."""

import pytest
from golden import COMMANDS, FOLDER, WIDTHS, text_of


@pytest.mark.parametrize("name", COMMANDS)
def test_a_terminal_shows_what_its_file_says(name):
    assert text_of(COMMANDS[name]) == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_file_has_a_command_and_no_line_is_wider_than_its_terminal():
    assert {path.stem for path in FOLDER.iterdir()} == set(COMMANDS)
    for path in FOLDER.iterdir():
        for part, width in zip(path.read_text(encoding="utf-8").split("\n$ ")[1:], WIDTHS, strict=True):
            lines = part.splitlines()[1:]
            assert max(len(line) for line in lines if not line.startswith(("scaleout ", "or: "))) <= width, path
