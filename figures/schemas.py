"""The schemas of what commands print with --json, a file each: docs/schema/COMMAND.json."""

from pathlib import Path

from scaleout.config.writing import write_json
from scaleout.report.vocabulary import DOCUMENTS, schema

FOLDER = Path(__file__).parents[1] / "docs" / "schema"


def main() -> None:
    """Write all of them."""
    for command in DOCUMENTS:
        write_json(FOLDER / f"{command.replace(' ', '-')}.json", schema(command))


if __name__ == "__main__":
    main()
