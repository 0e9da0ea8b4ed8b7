"""The architecture, read from the source: who may import whom, what lives in one place only, and how long a file is."""

import ast
from pathlib import Path

import pytest

import scaleout

PACKAGE = Path(scaleout.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if "data" not in path.relative_to(PACKAGE).parts)

# Modules and packages, lowest first: each may import those before it. What a kernel is (`operations`) and how long it
# takes on a device come before graphs, which hold kernels; the clock, folding and results come before `simulation`,
# where they meet. `describe` is text for the command line.
LAYERS = tuple(
    """
    errors units reading config library operation_counts operations
    sourced power product_stages work_groups device interpolation kernel_guesses kernel_models kernel_table kernels
    full_clock graph splice node_order program timing host selection nccl_tests transport fabric dimension wiring faults
    topology_file topology backends machine what_if peers placement parallelism pipelines workload
    chakra astra pytorch collectives generators memory network contention operators backend_comparison
    shared_devices engine fold job message tasks stuck result simulation schedule clocks
    analysis pipeline_timeline efficiency study buckets plans strategies
    astra_result astra_physical validation reproductions measure timeline plot heat_map pipeline_plot parity_plot
    track_plot operator_plot backend_plot bucket_plot scaling_plot report describe cli
    """.split()  # noqa: SIM905 - a list of forty strings hides the order
)

# A package that may be imported in some places only: top-level name to the modules under scaleout.
HOMES = {
    "click": ("cli",),
    "rich": ("cli",),
    "matplotlib": (
        "plot",
        "heat_map",
        "pipeline_plot",
        "parity_plot",
        "track_plot",
        "operator_plot",
        "backend_plot",
        "bucket_plot",
        "scaling_plot",
    ),
    "google": ("chakra",),
    "torch": ("measure",),
    "numba": ("network",),
    "triton": ("measure",),
}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def layer_of(path):
    """Top-level module or package that a file belongs to; empty for the package itself."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports(path):
    """Dotted names that a file imports anywhere, late imports included; `from a import b` gives both a and a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}, line {node.lineno}: relative import; write it absolute"
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def ours(path):
    """Dotted parts, without the leading `scaleout`, of what a file imports from the package."""
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "scaleout" and rest:
            yield rest


@each_file
def test_every_module_has_a_layer(path):
    layer = layer_of(path)
    assert layer in ("", *LAYERS), f"{layer!r} is not in LAYERS; put it above all that it imports"


@each_file
def test_imports_go_down(path):
    layer = layer_of(path)
    if layer == "":  # the package's own file names the public names, from everywhere
        return
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for parts in ours(path):
        assert parts[0] in LAYERS, f"{layer} imports {parts[0]!r} from scaleout itself; import it where it lives"
        assert parts[0] in allowed, f"{layer} imports {'.'.join(parts)}, which is above it"


def test_the_design_says_where_every_module_is():
    layout = (PACKAGE.parent / "DESIGN.md").read_text(encoding="utf-8").partition("## Where things are")[2]
    top = [path.name if path.is_file() else f"{path.name}/" for path in PACKAGE.iterdir()]
    named = [name for name in top if name.endswith((".py", "/")) and not name.startswith("__") and name != "data/"]
    assert named
    assert [name for name in named if name not in layout.partition("## Decisions")[0]] == []


def test_nothing_imports_itself_in_a_circle():
    """Within a package of ours too; what a package's own file imports late or for its types only does not count."""
    dotted = {path: ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in FILES}
    modules = {name.removesuffix(".__init__"): path for path, name in dotted.items()}
    waits = {
        name: {
            found
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ImportFrom) and node.module.startswith("scaleout.")
            for parts in [node.module.split(".")[1:]]
            for found in [".".join(parts), *(".".join([*parts, imported.name]) for imported in node.names)]
            if found in modules and found != name and not name.startswith(f"{found}.")
        }
        for name, path in modules.items()
    }
    while waits:
        free = {name for name, needs in waits.items() if not needs & waits.keys()}
        assert free, f"import each other in a circle: {', '.join(sorted(waits))}"
        waits = {name: needs for name, needs in waits.items() if name not in free}


@each_file
def test_heavy_packages_live_in_one_place(path):
    for name in imports(path):
        homes = HOMES.get(name.split(".")[0])
        assert homes is None or layer_of(path) in homes, f"{name} is imported outside {', '.join(homes)}"


@each_file
def test_only_the_command_line_prints(path):
    if layer_of(path) == "cli":
        return
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    lines = [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"]
    assert not lines, f"prints in lines {lines}; return the text"


@each_file
def test_files_are_short_and_say_what_they_are(path):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < 400
    assert ast.get_docstring(ast.parse(text)) or not text.strip()
