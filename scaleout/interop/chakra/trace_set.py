"""A trace set: its files, one a rank (``<prefix>.<rank>.et``), and the process groups that they name.

A key names its members in the rank's own metadata node, as in PyTorch's traces, or in a JSON file next to the trace, as
for ASTRA-sim. Our traces state their families. In other traces, the groups that congruent ranks name at the same
position become one family, as along a parallelism axis. Every group is in one family only.
"""

import ast
import os
import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.documents import is_file, parse_json, read_json, unique
from scaleout.errors import ConfigError, TraceError, shown
from scaleout.interop.chakra.vocabulary import WORLD, StatedFamily
from scaleout.interop.chakra.wire import Node
from scaleout.program.program import GroupFamily

_RANK_FILE = re.compile(r"(.+)\.(\d+)\.et", re.DOTALL)
_FORM = '{"1": [0, 1], "2": [2, 3]}'


class Group(NamedTuple):
    """A process group: two of one key are the same only if their members are."""

    key: str
    members: tuple[int, ...]


@dataclass(frozen=True)
class TraceSet:
    """The files of all ranks, and the groups that they name."""

    folder: Path
    prefix: str
    paths: tuple[Path, ...]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.paths)

    def group(self, key: str, declared: Mapping[str, Sequence[int]]) -> Group:
        """Return a group by its key and what a rank's own file declares; the group file is read when first needed."""
        everyone = tuple(range(self.num_ranks))
        key = key or WORLD
        if key in declared:
            return Group(key, self._checked(key, declared[key], "its metadata") if declared[key] else everyone)
        if key == WORLD:
            return Group(key, everyone)
        path, groups = self._file
        if path is None:
            raise TraceError(
                f"group {key!r} has no members: there is no group file beside the trace; "
                f"add {self.folder / self.prefix}.json, in the form {_FORM}"
            )
        if key not in groups:
            raise TraceError(f"group {key!r} is not in {path}, which has {_some(list(groups))}; add its ranks there")
        return Group(key, self._checked(key, groups[key], str(path)))

    def _checked(self, key: str, ranks: Sequence[int], where: str) -> tuple[int, ...]:
        num_ranks = self.num_ranks
        strange = next((rank for rank in ranks if not 0 <= rank < num_ranks), None)
        if strange is not None:
            raise TraceError(
                f"group {key!r} of {where} has rank {strange}, but there are only traces of ranks 0 to {num_ranks - 1};"
                f" give the files of all ranks"
            )
        if len(set(ranks)) != len(ranks):
            raise TraceError(f"group {key!r} of {where} has a rank twice: {_some(ranks)}; name each rank once")
        return tuple(ranks)

    @cached_property
    def _file(self) -> tuple[Path | None, dict[str, list[int]]]:
        """The group file: the one named like the trace, or else the only one in its folder."""
        named = self.folder / f"{self.prefix}.json"
        if named.exists():
            groups = _groups_in(read_json(named))
            if groups is None:
                raise TraceError(f"{named}: is no file of process groups; write it in the form {_FORM}")
            return named, groups
        read = ((path, _read_groups(path)) for path in sorted(self.folder.glob("*.json")))
        found = [(path, groups) for path, groups in read if groups is not None]
        if len(found) > 1:
            names = ", ".join(path.name for path, _ in found)
            raise TraceError(
                f"{self.folder}: {names} are all files of process groups; rename the right one to {named.name}"
            )
        return found[0] if found else (None, {})


def rank_file(prefix: str, rank: int) -> str:
    """Return the name of a rank's file.

    >>> rank_file("dlrm", 3)
    'dlrm.3.et'
    """
    return f"{prefix}.{rank}.et"


def prefixes(folder: Path) -> dict[str, dict[int, Path]]:
    """Return each prefix in a folder, and the file of each of its ranks."""
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read ({error.strerror}); give a folder of .et files") from None
    for name in names:
        match = _RANK_FILE.fullmatch(name)
        if match is None:
            continue
        files, rank = found[match[1]], int(match[2])
        if rank in files:
            raise TraceError(f"{folder}: {files[rank].name} and {name} are both of rank {rank}; remove one of them")
        files[rank] = folder / name
    return dict(found)


def find_traces(path: str | os.PathLike[str]) -> TraceSet:
    """Find the files of all ranks.

    Parameters
    ----------
    path : str or path
        A folder that holds one set, or a folder and a prefix, such as ``traces/dlrm`` for ``traces/dlrm.0.et``.

    Raises
    ------
    TraceError
        If there is no such folder or prefix, several prefixes to choose from, or a rank is missing.
    """
    path = Path(path)
    if path.is_dir():
        found = prefixes(path)
        if not found:
            recorded = any(path.glob("*.json*"))
            hint = _recording(path) if recorded else ""
            raise TraceError(f"{path}: holds no trace; its files must be named <prefix>.<rank>.et, ranks from 0{hint}")
        if len(found) > 1:
            choices = ", ".join(str(path / prefix) for prefix in found)
            raise TraceError(f"{path}: holds traces of several prefixes; give one of {choices}")
        folder, prefix = path, next(iter(found))
    else:
        folder, prefix = path.parent, path.name
        found = prefixes(folder) if folder.is_dir() else {}
        if prefix not in found:
            raise TraceError(_no_prefix(path, found))
    return TraceSet(folder, prefix, _complete(folder, prefix, found[prefix]))


def _no_prefix(path: Path, found: dict[str, dict[int, Path]]) -> str:
    of_rank = _RANK_FILE.fullmatch(path.name)
    if of_rank is not None and of_rank[1] in found:
        return f"{path}: is the name of one rank's file; give the prefix of all ranks, {path.parent / of_rank[1]}"
    if is_file(path):
        return f"{path}: is no set of traces <prefix>.<rank>.et{_recording(path)}"
    hint = f"; {path.parent} holds the prefixes {', '.join(found)}" if found else ""
    return f"{path}: no such folder, and no files {path.name}.<rank>.et; give a folder, or one and a prefix{hint}"


def _recording(path: Path) -> str:
    return f"; if it is of torch.profiler: scaleout import pytorch {path} --output DIR, then --trace DIR"


def _complete(folder: Path, prefix: str, files: dict[int, Path]) -> tuple[Path, ...]:
    num_ranks = max(files) + 1
    missing = [rank for rank in range(min(num_ranks, len(files) + 1)) if rank not in files]
    if missing:
        raise TraceError(
            f"{folder}: has no {rank_file(prefix, missing[0])}, the trace of rank {missing[0]}, but one of rank "
            f"{num_ranks - 1}; give the files of all ranks from 0"
        )
    return tuple(files[rank] for rank in range(num_ranks))


PROCESS_GROUPS_NODE = "## process_group:init ##"
"""Name of the metadata node in which PyTorch lists its process groups."""
_STRING = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_STRINGS = re.compile(rf"\s*\[\s*({_STRING})(?:\s*,\s*{_STRING})*\s*\]\s*", re.DOTALL)
"""Inputs as PyTorch writes them, a list of strings in Python's form; the first is captured."""


def declared_groups(node: Node) -> dict[str, list[int]]:
    """Read the groups that a metadata node lists, key to ranks; an empty list stands for all ranks."""
    if node.name != PROCESS_GROUPS_NODE:
        return {}
    try:
        match = _STRINGS.fullmatch(node.inputs)
        groups: Any = parse_json(ast.literal_eval(match[1]), where="input 0") if match else None
        return unique([(str(group["pg_name"]), _ranks(group["ranks"])) for group in groups])
    except (ConfigError, ValueError, SyntaxError, LookupError, TypeError):
        raise TraceError(
            f"{node}: its inputs are not a list of process groups; "
            f"""write values like ['[{{"pg_name": "1", "ranks": [0, 1]}}]']"""
        ) from None


def _ranks(value: Any) -> list[int]:
    if not (isinstance(value, list) and all(type(rank) is int for rank in value)):
        raise ValueError(f"{shown(value)} is no list of ranks")
    return value


def _read_groups(path: Path) -> dict[str, list[int]] | None:
    """Read a file of ASTRA-sim's form, or return None if it has another."""
    try:
        return _groups_in(read_json(path))
    except ConfigError:
        return None


def _groups_in(value: Any) -> dict[str, list[int]] | None:
    if not isinstance(value, dict) or not all(isinstance(ranks, list) for ranks in value.values()):
        return None
    if not all(type(rank) is int for ranks in value.values() for rank in ranks):
        return None
    return value


def _some(items: Sequence[object]) -> str:
    return ", ".join(map(str, items if len(items) <= 8 else [*items[:6], "...", items[-1]]))


def stated_families(stated: Sequence[StatedFamily], traces: TraceSet) -> tuple[GroupFamily, ...]:
    """Look up the members of the families that a trace's metadata states."""
    return tuple(
        GroupFamily(
            family.name,
            tuple(traces.group(family.key(index), {}).members for index in range(family.num_groups)),
            family.axis,
        )
        for family in stated
    )


def gathered_families(
    uses: Sequence[tuple[Hashable, Sequence[Group]]],
) -> tuple[tuple[GroupFamily, ...], dict[Group, int]]:
    """Gather groups into families, and return also the index of each group's family.

    Parameters
    ----------
    uses : sequence, one a rank
        The structure of the rank's file without its groups, and the groups that it names, in order.
    """
    leaders: dict[Group, Group] = {}  # a forest: a group to one that is in the same family; itself at the root

    def root(group: Group) -> Group:
        while leaders.setdefault(group, group) != group:
            group = leaders[group]
        return group

    first_at: dict[tuple[Hashable, int], Group] = {}
    for structure, groups in uses:
        for position, group in enumerate(groups):
            first = root(first_at.setdefault((structure, position), group))
            leaders[root(group)] = first
    joined: dict[Group, list[Group]] = {}
    for group in leaders:
        joined.setdefault(root(group), []).append(group)
    families: list[list[Group]] = []
    for groups in joined.values():
        ranks = [rank for group in groups for rank in group.members]
        # Groups that overlap are no axis: each is then a family of its own.
        families += [groups] if len(set(ranks)) == len(ranks) else [[group] for group in groups]
    named = tuple(GroupFamily(_family_name(groups), tuple(group.members for group in groups)) for groups in families)
    return named, {group: index for index, groups in enumerate(families) for group in groups}


def _family_name(groups: Sequence[Group]) -> str:
    return "world" if [group.key for group in groups] == [WORLD] else _some([group.key for group in groups])
