"""Options that several verbs share, and how their text becomes values."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from os.path import realpath
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from scaleout.cli import completion
from scaleout.cli.job import NamedJob, on_gpus
from scaleout.cli.printing import say_files, say_json
from scaleout.errors import ConfigError, shown

if TYPE_CHECKING:
    from scaleout.cluster.topology.what_if import NetworkChanges
    from scaleout.config.units import Quantity

Command = TypeVar("Command", bound=Callable[..., Any])

SUMMARY = "summary.json"
"""The file of an answer that every verb writes into the folder of --output."""


class Output(NamedTuple):
    """Where the answer of a verb goes, as ``--output`` and ``--json`` say."""

    folder: Path | None
    as_json: bool
    picture: str = "png"  # format
    width: str | None = None  # of pictures: column or page

    def give(
        self, summary: object, print_tables: Callable[[], None], write: Callable[[Path], Mapping[str, str]]
    ) -> None:
        """Write the files of an answer, then print it as JSON, its `summary`, or as tables with the names of the files.

        `write` writes into a folder that exists, and returns the names of the files, and what each holds; the summary
        is written besides, if it is not among them.
        """
        written: Mapping[str, str] = {}
        if self.folder is not None:
            from scaleout.config.writing import into, write_json

            with into(self.folder, recorded=True) as unfinished:
                written = self._drawn(unfinished, write)
                if SUMMARY not in written:
                    write_json(unfinished / SUMMARY, summary)
                    written = {SUMMARY: "what --json prints", **written}
        if self.as_json:
            say_json(summary)
            return
        print_tables()
        say_files(Path(self.folder or ""), written)

    def spare(self, *paths: str) -> None:
        """Refuse to replace what the answer is made of: the folder of another answer, or its summary."""
        if self.folder is None:
            return
        replaced = {realpath(self.folder), realpath(self.folder / SUMMARY)}
        for path in paths:
            if realpath(path) in replaced:
                raise ConfigError(f"--output {self.folder}: it would replace {path}; give another folder")

    def _drawn(self, folder: Path, write: Callable[[Path], Mapping[str, str]]) -> Mapping[str, str]:
        if self.picture == "png" and self.width is None:
            return write(folder)
        from scaleout.report.look import look

        with look(self.picture, self.width):
            written = write(folder)
        return {str(Path(name).with_suffix(f".{self.picture}")) if name.endswith(".png") else name: meaning
                for name, meaning in written.items()}  # fmt: skip


def _handing(
    name: str, collect: Callable[[dict[str, Any]], Any], add: Callable[[Command], Command]
) -> Callable[[Command], Command]:
    """Add options to a verb, and hand it one value by a `name`: what `collect` makes of those that it takes out."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def collected(*arguments: Any, **given: Any) -> Any:
            value = collect(given)
            return command(*arguments, **{name: value}, **given)

        return add(cast("Command", collected))

    return decorate


def _output(files: Sequence[str], given: dict[str, Any]) -> Output:
    folder, picture, width = given.pop("output"), given.pop("picture"), given.pop("width")
    if folder is None and (picture or width):
        raise ConfigError("--format and --width are of the pictures that --output writes; give --output DIR")
    if folder is not None:
        from scaleout.config.writing import RECORD, check_writable

        named = [each.replace(".png", f".{picture or 'png'}") for each in files]
        check_writable(folder, own=RECORD, command=click.get_current_context().info_name or "", files=named)
    return Output(folder, given.pop("as_json"), picture or "png", width)


class Whole(click.IntRange):
    """A whole number of at least 1, or another least one, written as in files: without zeros before it."""

    name = "whole number"

    def __init__(self, most: int = 10**9, *, least: int = 1) -> None:
        super().__init__(min=least, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; refuse what is none."""
        from scaleout.config.documents import whole

        if isinstance(value, str) and whole(value) is None:
            self.fail(f"{shown(value)} is no whole number{' above zero' if self.min else ''}.", param, ctx)
        return super().convert(value, param, ctx)


class Number(click.FloatRange):
    """A number from 0 to a largest one, written as in files."""

    name = "number"

    def __init__(self, most: float = 10**9) -> None:
        super().__init__(min=0, max=most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; refuse what is none, or next to nothing."""
        from scaleout.config.documents import not_tiny, number

        try:
            if isinstance(value, str) and (found := number(value)) is not None:
                return super().convert(not_tiny(found), param, ctx)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        return self.fail(f"{shown(value)} is no number.", param, ctx)


class Named(click.Path):
    """A file or a directory, which an empty name is not."""

    def __init__(self, *, folder: bool = True, file: bool = True, as_given: bool = False) -> None:
        super().__init__(path_type=str if as_given else Path, file_okay=file, dir_okay=folder)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; refuse none."""
        if value == "":
            self.fail(f"an empty name is no {self.name}; give one, such as results.", param, ctx)
        return super().convert(value, param, ctx)


class NameOrFile(click.types.StringParamType):
    """A name of what ships, or a file, which an empty name is not."""

    name = "NAME|FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name; refuse none."""
        if value == "":
            self.fail("an empty name is none; give one, or leave the option out.", param, ctx)
        return super().convert(value, param, ctx)


NAME_OR_FILE = NameOrFile()
FOLDER, FILE, PATH = Named(file=False), Named(folder=False), Named()
AS_GIVEN = Named(as_given=True)
"""Types of options and arguments; the last is no `Path`, but the text that is given."""


def picture_options(command: Command) -> Command:
    """Add ``--format`` and ``--width``."""
    picture = click.option(
        "--format", "picture", type=click.Choice(["png", "svg", "pdf"]), help="Of pictures in --output; by default png."
    )
    words = "Of pictures: a column (3.35 in) or page (7 in) of a journal; by default as wide as each reads well."
    return picture(click.option("--width", type=click.Choice(["column", "page"]), help=words)(command))


def look_options(command: Command) -> Command:
    """Add ``--format`` and ``--width``, and hand the verb one ``look``: what they are, for `report.look.look`."""
    return _handing("look", lambda given: (given.pop("picture") or "", given.pop("width")), picture_options)(command)


def output_options(meaning: str, *files: str) -> Callable[[Command], Command]:
    """Add ``--output``, a directory for `files`, and ``--json``, and hand the verb one ``output``, an `Output`."""
    folder = click.option("--output", type=FOLDER, help=meaning)
    return _handing("output", partial(_output, files), lambda command: folder(picture_options(json_option(command))))


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")(command)


def verbose_option(command: Command) -> Command:
    """Add ``--verbose``."""
    words = "Also print critical paths, what schedules decided, and when ranks are done."
    return click.option("-v", "--verbose", is_flag=True, help=words)(command)


def set_option(
    meaning: str = "Change a key of the workload; `scaleout show WORKLOAD` lists the keys",
) -> Callable[[Command], Command]:
    """Add ``--set key=value``."""
    words = f"{meaning}; repeatable."
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", shell_complete=completion.keys, help=words
    )


def machine_options(*, device: str | None = None, topology: str | None = None) -> Callable[[Command], Command]:
    """Add ``--topology`` and ``--device`` with defaults; by default those that the workload names."""

    def decorate(command: Command) -> Command:
        for name, default in (("device", device), ("topology", topology)):
            what = {"device": "GPU (or other device)"}.get(name, name)
            meaning = f"Name or file of the {what}" + ("." if default else "; by default the workload's.")
            known = completion.names_of(name)
            option = click.option(
                f"--{name}",
                default=default,
                show_default=True,
                type=NAME_OR_FILE,
                shell_complete=known,
                help=meaning,
            )
            command = option(command)
        return command

    return decorate


Stated = Mapping[str, Any]
"""Options of a simulation that are given, as keywords of `options_for`."""

IDEAL = click.option(
    "--ideal",
    is_flag=True,
    help="Leave out what slows a real device down: --host none, --clocks unthrottled and --no-contention.",
)

SIMULATION: Mapping[str, Callable[[Command], Command]] = {
    "algorithms": click.option(
        "--algorithm",
        "algorithms",
        multiple=True,
        metavar="KIND=NAME",
        help="Algorithm of a kind of collective, such as all_reduce=ring (`scaleout list algorithms` says what each "
        "is, and what NCCL calls it); repeatable.",
    ),
    "host": click.option(
        "--host",
        metavar="none|eager|blocking|checking",
        help="CPU launch overhead: none, or that of eager PyTorch, which launches kernels and collectives one after "
        "another (eager), each when the one before is done (blocking: CUDA_LAUNCH_BLOCKING=1), or with a check of each "
        "collective over its ranks (checking: TORCH_DISTRIBUTED_DEBUG=DETAIL). By default eager "
        "where the device's file has its costs, none for decode (CUDA graphs) and frameworks that compile a step.",
    ),
    "clocks": click.option(
        "--clocks",
        metavar="unthrottled|sustained|cold_start",
        help="GPU clocks: always at the maximum (unthrottled); throttled to the power limit, as in a long run "
        "(sustained); or as in a short benchmark on a cool GPU, at the maximum until the power limit acts "
        "(cold_start). By default sustained where the device's file says what it draws.",
    ),
    "network": click.option(
        "--network",
        default="alpha_beta",
        show_default=True,
        metavar="alpha_beta|link",
        help="Network model: the closed form of each collective, or messages that share every link max-min fairly.",
    ),
    "injection": click.option(
        "--injection",
        metavar="RATE",
        help="Total egress limit of a rank, over all its links together, such as '400 Gb/s'; needs --network link.",
    ),
    "policy": click.option(
        "--policy",
        metavar="NAME",
        help="Which back end serves all-reduces; back ends are the communication libraries, such as NCCL's rings or "
        "MPI, that the topology's file lists under `backends`. Give a name; NAME+NAME or fastest for the fastest at "
        "each size; a YAML file that says which at each size; or NAME=FILE,... to choose by the output of nccl-tests.",
    ),
    "contention": click.option(
        "--contention/--no-contention",
        default=None,
        help="Slow down kernels and collectives that run at the same time on a GPU, as far as they share its SMs and "
        "memory. How links are shared is --network. By default on.",
    ),
    "placement": click.option(
        "--placement",
        default="linear",
        show_default=True,
        metavar="ORDER",
        help="Rank of the topology on which each rank of the job runs: linear, transposed, order:1,0, strided:8, "
        "random:SEED, a list of ranks, or a file with one.",
    ),
}
"""Option of a simulation to what adds it to a verb; a verb takes those that hold for it."""


_UNSAID: Mapping[str, Any] = {"ideal": False, "algorithms": (), "network": "alpha_beta", "placement": "linear"}
"""Values of options that are not given, where that is not None."""


def simulation_options(*names: str) -> Callable[[Command], Command]:
    """Add ``--ideal`` and options of simulations by name, and hand the verb those that are given as one ``options``."""

    def collect(given: dict[str, Any]) -> Any:
        from scaleout.config.units import BYTES_PER_S
        from scaleout.study.realism import stated_options

        asked = {name: given.pop(name) for name in ("ideal", *names)}
        found = {name: value for name, value in asked.items() if value is not None and value != _UNSAID.get(name)}
        if "algorithms" in found:
            found["algorithms"] = parse_algorithms(found["algorithms"])
        if "injection" in found:
            found["injection_bytes_per_s"] = quantity_of("--injection", found.pop("injection"), BYTES_PER_S)
        stated_options(**found)
        return found

    def add(command: Command) -> Command:
        command = IDEAL(command)
        for name in reversed(names):
            command = SIMULATION[name](command)
        return command

    return _handing("options", collect, add)


class _Change(NamedTuple):
    """An option that changes the network, and the field of `NetworkChanges` that it is."""

    field: str
    form: str
    meaning: str
    example: str = ""  # where it maps

    @property
    def option(self) -> str:
        return "--break" if self.field == "broken" else f"--{self.field.replace('_', '-')}"


_CHANGES = (
    _Change("nodes", "N", "Another number of nodes: the size of the outermost dimension"),
    _Change(
        "taper",
        "DIM=RATIO",
        "Bandwidth below over bandwidth above the switches of a fat tree: 1=2:1, or with a ratio a level 1=2:1,1:1; a "
        "switch is cut into leaves of 32 ranks under spines by 1=2:1@32",
        "like 1=2:1",
    ),
    _Change("bandwidth", "DIM=RATE", "Bandwidth of a dimension: infiniband=2x, or 1=400Gb/s", "like 1=2x or 1=400Gb/s"),
    _Change("latency", "DIM=TIME", "Latency of a dimension: 1=0.5x, or nvlink=700ns", "like 1=2x or 1=700ns"),
    _Change("nic_down", "RANK", "Network card of a rank that is down; another of its node takes over, and is shared"),
    _Change(
        "degrade",
        "LINK=RATE",
        "Slow a link down to a share of its bandwidth or to a rate: 3-4=0.5, or 3-4='10 GB/s'. A link joins two ranks "
        "of the topology, or a switch and a rank or switch (`5-switch`); `scaleout show TOPOLOGY` names links and "
        "dimensions",
        "like 3-4=0.5",
    ),
    _Change("broken", "LINK", "Break a link; messages take another route"),
    _Change("slow", "RANK=FACTOR", "Multiply the kernel times of a rank, such as 5=1.3", "like 5=1.3"),
)


def beside_a_plan() -> str:
    """Name the options of a what-if of a plan: all but those that say which job it is."""
    changes = ", ".join(each.option for each in _CHANGES)
    named = ", ".join(f"--{'algorithm' if name == 'algorithms' else name}" for name in SIMULATION)
    return (
        f"--schedule; of the machine {changes}; of the simulation {named}, --ideal; --set of what no plan sets; and "
        f"what is printed or written: -v, --json, --output, --format, --width, --measure-next"
    )


def parse_changes(given: Mapping[str, Any]) -> "NetworkChanges":
    """Turn texts of options, by the field of `NetworkChanges` that they are, into changes; `ConfigError` if wrong."""
    from scaleout.cluster.topology.what_if import NetworkChanges

    found = dict(given)
    for each in _CHANGES:
        if each.example and each.field in found:
            found[each.field] = pairs_of(found[each.field], option=each.option, form=each.example)
    return NetworkChanges.of(**found)


def network_options(*, ranks: bool = True) -> Callable[[Command], Command]:
    """Add the options that change the network, and hand the verb one ``changes``, a `NetworkChanges`.

    Without `ranks` there is no ``--slow``: a collective alone has no kernels.
    """
    offered = [each for each in _CHANGES if ranks or each.field != "slow"]

    def add(command: Command) -> Command:
        for each in reversed(offered):
            several = each.field != "nodes"
            words = f"{each.meaning}{'; repeatable' * several}."
            known = completion.dimensions if each.form.startswith("DIM=") else None
            command = click.option(
                each.option, each.field, multiple=several, metavar=each.form, shell_complete=known, help=words
            )(command)
        return command

    return _handing(
        "changes", lambda given: parse_changes({each.field: given.pop(each.field) for each in offered}), add
    )


def job_options(*, required: bool = True, replicas: bool = True) -> Callable[[Command], Command]:
    """Add WORKLOAD, ``--topology``, ``--device``, ``--set`` and changes of the network; hand the verb a `NamedJob`.

    And ``--gpus``, which stands for nodes and `replicas`, unless the verb chooses these.
    """

    def collect(given: dict[str, Any]) -> NamedJob:
        settings, gpus = parse_settings(given.pop("settings")), given.pop("gpus")
        named = {name: given.pop(name) for name in ("workload", "topology", "device", "changes")}
        check_named_once(settings, topology=named["topology"], device=named["device"])
        job = NamedJob(**named, settings=settings)
        return job if gpus is None else on_gpus(job, gpus, replicas=replicas)

    def add(command: Command) -> Command:
        of = "replicas (data_parallel) and nodes" if replicas else "nodes"
        words = (
            f"Run on so many: as many {of} of the topology as that makes, or a part of a node; without --topology on "
            f"the network that --device is sold with, if the workload's is another's or too small. Not beside what "
            f"sets these."
        )
        command = click.option("--gpus", type=Whole(), metavar="N", help=words)(command)
        named = machine_options()(set_option()(network_options()(command)))
        known = completion.names_of("workload")
        return click.argument("workload", required=required, shell_complete=known)(named)

    return _handing("job", collect, add)


def quantity_of(option: str, text: str, quantity: "Quantity") -> float:
    """Read a value with its unit; `ConfigError` that names the option if it is none."""
    from scaleout.config.units import parse

    try:
        return parse(text, quantity)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def check_named_once(settings: Mapping[str, Any], **named: str | None) -> None:
    """Refuse a key of the workload that is set where an option of its name says another."""
    for name, value in named.items():
        if value is not None and name in settings:
            raise ConfigError(f"--{name} and --set {name} both name the {name}; give one of them")


def pairs_of(texts: Sequence[str], *, option: str, form: str, empty: bool = False) -> dict[str, str]:
    """Turn ``what=to`` texts into a mapping; `ConfigError` if one is not of the form, or names the same twice."""
    found: dict[str, str] = {}
    for text in texts:
        what, separator, to = text.partition("=")
        what = what.strip(" ")
        if not (what and separator and (to or empty)):
            raise ConfigError(f"{option} {shown(text)}: write it {form}")
        if what in found:
            raise ConfigError(f"{option} {shown(text)}: {what} is given twice; give it once")
        found[what] = to
    return found


def parse_settings(settings: Sequence[str], *, option: str = "--set") -> dict[str, Any]:
    """Turn ``key=value`` texts into a mapping, values read as YAML reads them; `ConfigError` if one cannot be read."""
    from scaleout.config.yaml_files import parse_value

    values: dict[str, Any] = {}
    for key, value in pairs_of(settings, option=option, form="as key=value", empty=True).items():
        values[key] = parse_value(value, where=f"{option} {shown(f'{key}={value}')}")
    return values


def parse_algorithms(texts: Sequence[str]) -> dict[str, str]:
    """Check each ``kind=name`` of ``--algorithm``, used or not: a wrong one must not be passed over in silence."""
    from scaleout.network.collectives import check_chosen

    chosen: dict[str, str] = {}
    for key, given in pairs_of(texts, option="--algorithm", form="as kind=name, such as all_reduce=ring").items():
        kind, name = key.replace("-", "_"), given.strip(" ")
        check_chosen(kind, name, where=f"--algorithm {key}={name}")
        if kind in chosen:
            raise ConfigError(f"--algorithm {key}={name}: {kind} is given twice; give it once")
        chosen[kind] = name
    return chosen
