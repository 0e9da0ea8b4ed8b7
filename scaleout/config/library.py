"""Names to files: `torus-8x16` or `./mine.yaml` to a path, for workloads, topologies and devices.

The data folders are next to the package in a clone and inside it in a wheel.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaleout.config.documents import is_file
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, shown

_PACKAGE = Path(__file__).parents[1]
_ROOTS = (_PACKAGE / "data", _PACKAGE.parent)
FOLDERS = {
    "workload": "workloads",
    "topology": "topologies",
    "link type": "topologies/links",
    "device": "traces",
    "study": "workloads/studies",
}
"""Kind of file to the data folder that holds it; a device is a folder with its file and its measured kernel times."""
_KINDS = {
    "workload": ("kind", "a workload; run it by `scaleout run`"),
    "topology": ("dimensions", "a topology; give it to --topology"),
    "device": ("peak_flops", "a device; give it to --device"),
    "answer": ("schema", "an answer of scaleout; open it by `scaleout view`"),
    "study": ("title", "a study; run it by `scaleout study`"),
}
"""Kind of file to the key by which it is known, where it has none of those before, and to what takes it."""
_RESULTS = ("summary.json", "cases.parquet")
"""Files of which a folder of results has one."""
_DEVICE_FILE = "device.yaml"
_LONGEST_CHAIN = 16
"""Of files that name one another."""


def folder(kind: str) -> Path:
    """Return the folder that holds the shipped files of a kind."""
    for root in _ROOTS:
        if (root / FOLDERS[kind]).is_dir():
            return root / FOLDERS[kind]
    raise ConfigError(f"the {FOLDERS[kind]} folder is missing from this installation; install scaleout anew")


def names(kind: str) -> list[str]:
    """Return the names of the shipped files of a kind, sorted."""
    files = folder(kind).glob(f"*/{_DEVICE_FILE}" if kind == "device" else "*.yaml")
    return sorted(name_of(path) for path in files)


def name_of(path: Path) -> str:
    """Return the name of a file: of ``h200/device.yaml`` its folder's, of any other file its own."""
    return path.absolute().parent.name if path.name == _DEVICE_FILE else path.stem


def is_path(name_or_file: str) -> bool:
    """Return whether a text names a file rather than a shipped name."""
    return name_or_file.endswith((".yaml", ".yml", ".graphml", ".edgelist")) or "/" in name_or_file


def what_it_is(values: Mapping[str, Any]) -> str:
    """Say by the keys of a file what it is and which command takes it; nothing where none is known."""
    return next((words for key, words in _KINDS.values() if values.get(key) is not None), "")


def check_kind(values: Mapping[str, Any], kind: str, *, where: str) -> None:
    """Raise `ConfigError` if the keys of a file are those of another kind."""
    key = _KINDS[kind][0]
    if values.get(key) is None and (other := what_it_is(values)):
        raise ConfigError(f"{where}: is no {kind} (it has no key {key!r}), but {other}")


def holds_results(folder: Path) -> bool:
    """Return whether a folder is one of --output or of a study."""
    return any(_is_there(folder / file) for file in _RESULTS)


def _is_there(path: Path, *, folder: bool = False) -> bool:
    """Return whether there is a file, or a folder; none has a name that is too long, or holds a null."""
    try:
        return path.is_dir() if folder else path.is_file()
    except (OSError, ValueError):
        return False


def of_here(name: str) -> str:
    """Return a hint how to write the name of a trace or a file of the working directory; nothing if it is none."""
    if name and holds_results(Path(name)):
        return f"{name!r} is a folder of results here: open it by `scaleout view {name}`"
    others = "traces are run by --trace FOLDER, recordings read by `scaleout import pytorch`"
    model = Path(name, "config.json") if name and _is_there(Path(name), folder=True) else Path(name)
    if model.name.endswith(".json") and (model == Path(name) or _is_there(model)):
        return f"`scaleout import model {name}` makes a workload of a model's config.json; {others}"
    if name.endswith(".et"):
        return others
    if name and _is_there(Path(name), folder=True):
        return (
            f"{name!r} is a folder here: traces are run by --trace {name}, recordings read by `scaleout import pytorch`"
        )
    return f"for the file of this name write {f'./{name}'!r}" if name and _is_there(Path(name)) else ""


def find(kind: str, name_or_file: str, *, named_by: str = "") -> Path:
    """Return the file of a name or path, or raise `ConfigError` with the nearest name.

    `named_by` is the file and key that name it, for the message.
    """
    where = f"{named_by}: " if named_by else ""
    if not name_or_file and kind in ("topology", "device"):
        raise ConfigError(f"{where}no {kind} is given; give --{kind} NAME, or the key {kind} in the workload's file")
    if is_path(name_or_file):
        path = Path(name_or_file)
        if not is_file(path, named_by=named_by):
            of_hub = kind == "workload" and not name_or_file.endswith((".yaml", ".yml"))
            hub = "; a model of HuggingFace is read from its config.json by `scaleout import model`" * of_hub
            raise ConfigError(
                f"{where}{kind} file {name_or_file!r} does not exist; give a file or one of the names "
                f"that `{listed(kind)}` prints{hub}"
            )
        return path
    path = folder(kind) / (f"{name_or_file}/{_DEVICE_FILE}" if kind == "device" else f"{name_or_file}.yaml")
    if not _is_there(path):
        hint = of_here(name_or_file) or _other_sizes(kind, name_or_file) or nearest(name_or_file, names(kind))
        raise ConfigError(f"{where}unknown {kind} {name_or_file!r}; {hint} (`{listed(kind)}` names them all)")
    return path


def listed(kind: str) -> str:
    """Return the command that lists the names of a kind.

    >>> listed("link type"), listed("topology")
    ('scaleout list link-types', 'scaleout list topologies')
    """
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"scaleout list {plural.replace(' ', '-')}"


def pop_like(values: dict[str, Any], kind: str, path: Path) -> str | None:
    """Take out of a file's keys the name or file that it is `like`, or None; `ConfigError` if it is no text."""
    like = values.pop("like", None)
    if like is not None and not isinstance(like, str):
        raise ConfigError(f"{path}: like is {shown(like)}; give the name or file of a {kind}")
    return like


def lengthened(chain: tuple[Path, ...], path: Path, *, key: str) -> tuple[Path, ...]:
    """Return files of which each names the next by a key, with one more; `ConfigError` if they come in a circle."""
    if path in chain:
        raise ConfigError(f"{path}: {key} leads back to this file; let one of {', '.join(map(str, chain))} do without")
    if len(chain) == _LONGEST_CHAIN:
        raise ConfigError(f"{chain[0]}: {key} leads through more than {_LONGEST_CHAIN} files; write the values out")
    return (*chain, path)


def _other_sizes(kind: str, name: str) -> str:
    """Name the shipped sizes of a topology's kind: for t3-ring-4, t3-ring-8."""
    family, _, size = name.rpartition("-")
    if kind != "topology" or not size.isdecimal():
        return ""
    known = [each.rpartition("-") for each in names(kind)]
    sizes = sorted(int(end) for start, _, end in known if start == family and end.isdecimal())
    shipped = ", ".join(f"{family}-{one}" for one in sizes)
    return f"of its kind there are {shipped}; size the job for one of them, or give another topology" if sizes else ""
