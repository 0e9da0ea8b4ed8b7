"""Write docs/keys/: every key of each kind of file, as `scaleout show --keys KIND` prints them.

    python figures/keys.py [--output DIRECTORY]

A test compares the pages with what this writes.
"""

import argparse
from pathlib import Path

from scaleout.report.keys import MODELS, rows_of

FOLDER = Path(__file__).parents[1] / "docs" / "keys"
COLUMNS = ("key", "type", "unit", "default", "meaning", "example", "from")


def page(kind: str) -> str:
    """The page of a kind of file."""
    name = kind.replace("-", " ")
    lines = [
        f"# Keys of a {name}",
        "",
        f"Written by `python figures/keys.py`. `scaleout show --keys {kind}` prints the same, and with a word",
        "behind it the keys that have the word. `list[].key` is a key of a list's entries, `mapping.NAME.key` of each",
        "value of a mapping.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{'---|' * len(COLUMNS)}",
    ]
    for row in rows_of(kind):
        key, families = row.key, f" (of {', '.join(row.families)})" if row.families else ""
        cells = (f"`{key.name}`", key.type, key.unit, key.default, key.meaning + families, row.example, row.source)
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def index() -> str:
    """The page that names the others."""
    links = [f"- [{kind.replace('-', ' ')}]({kind}.md)" for kind in MODELS]
    tree = ["```{toctree}", ":hidden:", "", *MODELS, "```"]
    return "\n".join(["# Keys of files", "", *links, "", *tree]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=FOLDER)
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"index": index(), **{each: page(each) for each in MODELS}}.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
