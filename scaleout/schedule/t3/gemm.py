"""A GEMM in stages: tiles of the output to what each stage reads, multiplies and writes, and the regions that are sent.

A stage holds ``units x tiles_per_unit`` tiles, row by row or column by column, whichever reads less; the fullest unit
decides how long it multiplies. The left operand is read once, the right one by every sweep (the rows of tiles that a
stage makes), as far as the last-level cache has lost it. See docs/models/t3.md.

Symbols: S stages; M x K times K x N. Source: Smith, IEEE TSE SE-4(2), 1978; Hill and Smith, IEEE TC 38(12), 1989.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.sections import Stages
from scaleout.cluster.device.spec import Device
from scaleout.errors import ConfigError
from scaleout.program.fastest import fastest
from scaleout.program.operations import ITEM_BYTES

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gemm:
    """Sizes of a GEMM; `split_depth` work-groups share a tile and add up what they make (split-K).

    The left operand lies in memory along K. `transposed`: so does the right one, as weights in a forward pass; in a
    backward pass, which multiplies by the same weights the other way round, it lies along N.
    """

    rows: int
    columns: int
    depth: int
    dtype: str = "fp16"
    split_depth: int = 1
    transposed: bool = True

    @property
    def output_bytes(self) -> int:
        """Of the whole output."""
        return self.rows * self.columns * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, eq=False)
class Staged:
    """What the stages of a GEMM do, shape (S,) each."""

    tiles: Floats
    output_bytes: Floats  # each element counted once
    compute_s: Floats  # of multiplying, with everything at hand
    read_bytes: Floats  # from memory
    write_bytes: Floats
    read_s: Floats  # of reading, with the memory to itself
    write_s: Floats  # of writing into the cache, which writes back during the next stage, and what that does not hide
    iterations: int  # over K, of each tile
    bypassed: bool  # whether the output goes past the cache

    @property
    def isolated_s(self) -> float:
        """Time of the GEMM with the memory to itself: each stage reads, multiplies and writes."""
        return float((self.compute_s + self.read_s + self.write_s).sum())


MOST_STAGES = 2_000
"""Stages of a GEMM that are simulated; the largest of the paper's has 54."""


def constants_of(device: Device) -> Stages:
    """Return how a device runs GEMMs in stages; a ConfigError says that its file does not."""
    if device.stages is None:
        raise ConfigError(
            f"device {device.name!r} does not say how it runs GEMMs in stages; add `stages` to its file, "
            f"as in traces/t3-gpu/device.yaml, or take --device t3-gpu"
        )
    return device.stages


def memory_rate(device: Device) -> float:
    """Return the bytes that a device's memory moves in a second, as its banks allow it."""
    return device.memory_bytes_per_s / constants_of(device).access_cost


def stage(gemm: Gemm, device: Device, *, isolated_s: float, units: int | None = None, bypassed: bool = False) -> Staged:
    """Cut a GEMM into stages, worked on by some compute units, by default by all; its output may bypass the cache.

    Of `isolated_s`, the transposed GEMM's time on the whole device, reading and writing leave the rest to multiply.
    """
    constants, rate = constants_of(device), memory_rate(device)
    units = device.num_sms if units is None else units
    whole = _tiles(gemm, constants, device.num_sms)
    written = float(gemm.output_bytes * gemm.split_depth)  # partial tiles are added where they are written
    _, read_s = _reads(replace(gemm, transposed=True), device, whole[0], bypassed=False)
    cached_s = written / constants.cache_write
    tile_s = max(isolated_s - read_s - cached_s, 0.0) / np.ceil(whole / device.num_sms).sum()
    tiles = _tiles(gemm, constants, units)
    share = tiles / tiles.sum()
    reads, read_s = _reads(gemm, device, tiles[0], bypassed=bypassed)
    compute_s = np.ceil(tiles / units) * tile_s
    write_s = np.maximum(cached_s * share, written / rate * share - compute_s)
    compute_s[0] += constants.kernel_launch
    iterations = math.ceil(gemm.depth / gemm.split_depth / constants.tile_depth)
    return Staged(
        tiles,
        gemm.output_bytes * share,
        compute_s,
        reads * share,
        written * share,
        read_s * share,
        write_s,
        iterations,
        bypassed,
    )


def _tiles(gemm: Gemm, constants: Stages, units: int) -> Floats:
    """Tiles of each stage."""
    down = math.ceil(gemm.rows / constants.tile_rows)
    across = math.ceil(gemm.columns / constants.tile_columns)
    total = down * across * gemm.split_depth
    held = units * constants.tiles_per_unit
    stages = -(-total // held)
    if stages > MOST_STAGES:
        raise ConfigError(
            f"a GEMM of {gemm.rows:,} x {gemm.columns:,} has {stages:,} stages of {held} tiles, and at most "
            f"{MOST_STAGES:,} are simulated (half a minute); choose fewer rows or columns"
        )
    tiles = np.full(stages, float(held))
    tiles[-1] = total - held * (len(tiles) - 1)
    return tiles


def _reads(gemm: Gemm, device: Device, held: float, *, bypassed: bool) -> tuple[float, float]:
    """Bytes that the whole GEMM reads, tiles in the order that reads less, and the time of reading them."""
    constants = constants_of(device)
    cache, item_bytes = Cache(device.l2_bytes, constants.cache_ways), ITEM_BYTES[gemm.dtype]
    down, across = constants.tile_rows, constants.tile_columns
    turned = replace(gemm, rows=gemm.columns, columns=gemm.rows)

    def of(way: Gemm, down: int, across: int) -> tuple[float, float]:
        sweep_rows = max(1.0, held / gemm.split_depth / math.ceil(way.columns / across)) * down
        return read_bytes(way, sweep_rows=sweep_rows, cache=cache, bypassed=bypassed)

    left, right = fastest((of(gemm, down, across), of(turned, across, down)[::-1]), math.fsum)
    along_depth = constants.tile_depth * item_bytes
    right_piece = along_depth if gemm.transposed else across * item_bytes
    cost = left * constants.piece_cost(along_depth) + right * constants.piece_cost(right_piece)
    return left + right, cost / memory_rate(device)


@dataclass(frozen=True)
class Cache:
    """A last-level cache."""

    size_bytes: float
    ways: int


def missed(distance_bytes: float, cache: Cache) -> float:
    """Return the share of lines that are evicted when they are used again after other bytes.

    >>> missed(0.0, Cache(16e6, 16)), round(missed(16e6, Cache(16e6, 16)), 3)
    (0.0, 0.533)
    """
    mean = cache.ways * distance_bytes / cache.size_bytes
    if mean == 0:
        return 0.0
    there = (math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in range(cache.ways))
    return max(0.0, 1.0 - fsum(there))


def read_bytes(gemm: Gemm, *, sweep_rows: float, cache: Cache, bypassed: bool) -> tuple[float, float]:
    """Return the bytes of the left and of the right operand that a GEMM reads from memory.

    `sweep_rows` are rows of the output made between two uses of the right operand; a `bypassed` output takes no cache.
    """
    rows, item_bytes = gemm.rows, ITEM_BYTES[gemm.dtype]
    left_bytes, right_bytes = rows * gemm.depth * item_bytes, gemm.depth * gemm.columns * item_bytes
    sweep_rows = min(sweep_rows, rows)
    passing = right_bytes + sweep_rows * gemm.depth * item_bytes
    if not bypassed:
        passing += sweep_rows * gemm.columns * item_bytes
    sweeps = rows / sweep_rows
    return left_bytes, right_bytes * (1 + (sweeps - 1) * missed(passing, cache))


@dataclass(frozen=True)
class Region:
    """Part of a chunk that one stage makes, from byte `begin` to byte `end`; `place` numbers the chunks of its rank.

    All ranks run the same GEMM, each a chunk further than the next. A rank's first chunk goes straight into the next
    rank's memory; later ones are added to what has arrived and sent on, but the last, which stays.
    """

    stage: int
    place: int
    begin: float
    end: float

    @property
    def size_bytes(self) -> float:
        """How long it is."""
        return self.end - self.begin


TRIGGER_BYTES = 2.0**19
"""Most that copy engines send as one: sixteen tiles of 128 x 128 numbers of 16 bits, much less than a chunk."""


def regions_of(staged: Staged, size_bytes: float, chunks: int, *, trigger_bytes: float = TRIGGER_BYTES) -> list[Region]:
    """Return the regions of a GEMM's output, in the order in which they are made.

    The output has `size_bytes`, partial tiles of a split GEMM counted once, in a chunk for each rank; what a stage
    makes of a chunk is cut into equal regions of at most `trigger_bytes`.
    """
    stage_ends = np.cumsum(staged.tiles) / staged.tiles.sum() * size_bytes
    chunk = size_bytes / chunks
    ends = np.sort(np.concatenate([stage_ends, chunk * np.arange(1, chunks + 1)]))
    ends = ends[np.diff(ends, prepend=0.0) > chunk * 1e-9]
    regions, begin = [], 0.0
    for end in map(float, ends):
        place = min(int((begin + end) / 2 / chunk), chunks - 1)
        made = min(int(np.searchsorted(stage_ends, end * (1 - 1e-12))), len(stage_ends) - 1)
        cuts = np.linspace(begin, end, math.ceil((end - begin) / trigger_bytes) + 1) - place * chunk
        regions += [Region(made, place, float(low), float(high)) for low, high in pairwise(cuts)]
        begin = end
    return regions
