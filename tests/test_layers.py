"""The architecture, read from the source: who may import whom, what lives in one place only, and how long a file is."""

import ast
from pathlib import Path

import networkx as nx
import pytest

import scaleout

PACKAGE = Path(scaleout.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "data" not in path.relative_to(PACKAGE).parts)

ROOMS = (
    "errors", "config", "program", "cluster", "network", "workloads", "simulation", "schedule", "analysis", "study",
    "interop", "validation", "report", "api", "testing", "cli",
)  # fmt: skip
"""What lies under `scaleout`, lowest first: each may import those before it."""

WORKLOADS = ("pipeline", "config", "generate", "families", "memory")
"""What lies under `scaleout.workloads`, lowest first: each is loaded with those before it alone."""

HOMES = {
    "click": "cli",
    "rich": "cli",
    "dask": "study/sweep",
    "distributed": "study/sweep",
    "dask_jobqueue": "study/sweep",
    "matplotlib": "report/plots",
    "altair": "report/pages",
    "itables": "report/pages",
    "google": "interop/chakra",
    "torch": "validation/measure",
    "triton": "validation/measure",
    "numba": "network/flow",
}
"""A package that may be imported in one folder only."""

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def dotted(path):
    """Dotted name of a file; a package's own file is the package."""
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {dotted(path): path for path in FILES}


def room_of(path):
    """The room a file lies in; empty for the package's own file."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(tree, path):
    """Dotted names that a tree imports anywhere, late imports included; `from a import b` gives both a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: relative import; write it absolute"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_the_rooms_are_those_of_the_list():
    found = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert found - {"__init__", "__pycache__", "data"} == set(ROOMS)


@each_file
def test_imports_go_down(path):
    room = room_of(path)
    if room == "":  # the package's own file names the public names, from everywhere
        return
    allowed = ROOMS[: ROOMS.index(room) + 1]
    for name in imports(ast.parse(path.read_text(encoding="utf-8")), path):
        first, *rest = name.split(".")
        if first != "scaleout" or not rest or rest == ["__version__"]:
            continue
        assert rest[0] in ROOMS, f"{room} imports {rest[0]!r} from scaleout itself; import it where it lives"
        assert rest[0] in allowed, f"{room} imports {name}, which is above it"


def loaded_with(path):
    """Modules of ours that are loaded as a file is: what it imports at its top, and their packages."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        for name in imports(node, path) if isinstance(node, ast.ImportFrom | ast.Import) else ():
            found |= {".".join(name.split(".")[:end]) for end in range(2, name.count(".") + 2)}
    return {name for name in found if name in MODULES and not dotted(path).startswith(f"{name}.")} - {dotted(path)}


def test_nothing_imports_itself_in_a_circle():
    graph = nx.DiGraph((name, other) for name, path in MODULES.items() for other in loaded_with(path))
    circles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert not circles, f"import each other in a circle: {circles}"


def test_workloads_go_down():
    found = {path.name for path in (PACKAGE / "workloads").iterdir() if path.is_dir()}
    assert found - {"__pycache__"} == set(WORKLOADS)
    for name, path in MODULES.items():
        if not name.startswith("scaleout.workloads."):
            continue
        allowed = WORKLOADS[: WORKLOADS.index(name.split(".")[2]) + 1]
        above = [other for other in loaded_with(path) if other.startswith("scaleout.workloads.")]
        above = [other for other in above if other.split(".")[2] not in allowed]
        assert not above, f"{name} is loaded with {above}, which is above it"


@each_file
def test_heavy_packages_live_in_one_place(path):
    for name in imports(ast.parse(path.read_text(encoding="utf-8")), path):
        home = HOMES.get(name.split(".")[0])
        where = path.relative_to(PACKAGE).as_posix()
        assert home is None or where.startswith(f"{home}/"), f"{name} is imported outside {home}"


@each_file
def test_only_the_command_line_prints(path):
    if room_of(path) == "cli":
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not lines, f"prints in lines {lines}; return the text"


@each_file
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 500
    assert ast.get_docstring(ast.parse(text))
