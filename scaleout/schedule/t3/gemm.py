"""A GEMM in stages: tiles of the output to what each stage reads, multiplies and writes.

A stage holds ``units x tiles_per_unit`` tiles; the last one what is left, and the fullest unit decides how long it
multiplies. Tiles go row by row or column by column,
whichever reads less, as libraries order them. Symbols: S stages; M x K times K x N.

What a GEMM in stages reads from memory, through a last-level cache.

A sweep is as many rows of tiles as a stage makes, or one if a row takes several stages. The rows of the left operand
are read once, by their sweep. The right operand is read by every sweep: between two readings of a line the rest of
it passes through the cache, with the sweep's share of the left operand and, unless they go round it, of the output.
A line is still there if fewer others than the cache has ways fell into its set; others fall into sets at random:

    missed(d) = P(X >= ways),  X ~ Poisson(ways d / cache)

Symbols: M x K times K x N; d bytes between two uses of a line.
Source: of the set-associative cache, Smith, A Comparative Study of Set Associative Memory Mapping Algorithms, IEEE
TSE SE-4(2), 1978; Hill and Smith, IEEE TC 38(12), 1989.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.sections import Stages
from scaleout.cluster.device.spec import Device
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gemm:
    """Sizes of a GEMM; `split_depth` work-groups share a tile and add up what they make (split-K)."""

    rows: int
    columns: int
    depth: int
    dtype: str = "fp16"
    split_depth: int = 1

    @property
    def output_bytes(self) -> int:
        """Of the whole output."""
        return self.rows * self.columns * ITEM_BYTES[self.dtype]

    @property
    def flops(self) -> int:
        """Two for each GEMM and sum."""
        return 2 * self.rows * self.columns * self.depth


@dataclass(frozen=True, eq=False)
class Staged:
    """What the stages of a GEMM do.

    Attributes
    ----------
    tiles : (S,) of the output, made in each stage
    output_bytes : (S,) of the output, each element counted once
    compute_s : (S,) of multiplying, with everything at hand
    read_bytes, write_bytes : (S,) from and to memory
    """

    tiles: Floats
    output_bytes: Floats
    compute_s: Floats
    read_bytes: Floats
    write_bytes: Floats

    def alone_s(self, memory_bytes_per_s: float) -> float:
        """Return the time of the GEMM with the memory to itself: each stage reads, multiplies and writes."""
        return float(self.compute_s.sum() + (self.read_bytes.sum() + self.write_bytes.sum()) / memory_bytes_per_s)


def constants_of(device: Device) -> Stages:
    """Return how a device runs GEMMs in stages.

    Raises
    ------
    ConfigError
        If its file does not say.
    """
    if device.stages is None:
        raise ConfigError(
            f"device {device.name!r} does not say how it runs GEMMs in stages; add `stages` to its file, "
            f"as in traces/t3-gpu/device.yaml, or take --device t3-gpu"
        )
    return device.stages


def stage(gemm: Gemm, device: Device, *, alone_s: float, units: int | None = None, bypassed: bool = False) -> Staged:
    """Cut a GEMM into stages.

    Parameters
    ----------
    alone_s : float
        What the GEMM takes alone on the whole device: the time to multiply is what reading and writing leave of it.
    units : int, optional
        Compute units that work on it; all of the device by default. A stage of fewer holds fewer tiles.
    bypassed : bool
        Whether the output goes round the last-level cache.

    Raises
    ------
    ConfigError
        If the device does not say how it runs GEMMs in stages.
    """
    constants = constants_of(device)
    units = device.num_sms if units is None else units
    whole = _tiles(gemm, constants, device.num_sms)
    memory_s = (_reads(gemm, device, constants, whole[0], bypassed=False) + _written(gemm)) / (
        device.memory_bytes_per_s
    )
    tile_s = max(alone_s - memory_s, 0.0) / np.ceil(whole / device.num_sms).sum()
    tiles = _tiles(gemm, constants, units)
    share = tiles / tiles.sum()
    reads = _reads(gemm, device, constants, tiles[0], bypassed=bypassed)
    return Staged(
        tiles, gemm.output_bytes * share, np.ceil(tiles / units) * tile_s, reads * share, _written(gemm) * share
    )


def _tiles(gemm: Gemm, constants: Stages, units: int) -> Floats:
    """Tiles of each stage."""
    down = math.ceil(gemm.rows / constants.tile_rows)
    across = math.ceil(gemm.columns / constants.tile_columns)
    total = down * across * gemm.split_depth
    held = units * constants.tiles_per_unit
    tiles = np.full(math.ceil(total / held), float(held))
    tiles[-1] = total - held * (len(tiles) - 1)
    return tiles


def _written(gemm: Gemm) -> float:
    """Bytes that the GEMM writes: partial tiles of a split GEMM are added where they are written."""
    return float(gemm.output_bytes * gemm.split_depth)


def _reads(gemm: Gemm, device: Device, constants: Stages, held: float, *, bypassed: bool) -> float:
    """Bytes that the whole GEMM reads, tiles in the order that reads less."""
    cache = Cache(device.l2_bytes, constants.cache_ways)
    across = math.ceil(gemm.columns / constants.tile_columns)
    down = math.ceil(gemm.rows / constants.tile_rows)
    ways = (
        (gemm.rows, gemm.columns, constants.tile_rows, across),
        (gemm.columns, gemm.rows, constants.tile_columns, down),
    )
    return min(
        read_bytes(
            rows,
            columns,
            gemm.depth,
            item_bytes=ITEM_BYTES[gemm.dtype],
            sweep_rows=max(1.0, held / gemm.split_depth / line) * tile,
            cache=cache,
            bypassed=bypassed,
        )
        for rows, columns, tile, line in ways
    )


@dataclass(frozen=True)
class Cache:
    """A last-level cache."""

    size_bytes: float
    ways: int


def missed(distance_bytes: float, cache: Cache) -> float:
    """Return the share of lines that are gone when they are used again after other bytes.

    >>> missed(0.0, Cache(16e6, 16)), round(missed(16e6, Cache(16e6, 16)), 3)
    (0.0, 0.533)
    """
    mean = cache.ways * distance_bytes / cache.size_bytes
    if mean == 0:
        return 0.0
    there = (math.exp(count * math.log(mean) - mean - math.lgamma(count + 1)) for count in range(cache.ways))
    return max(0.0, 1.0 - sum(there))


def read_bytes(
    rows: int, columns: int, depth: int, *, item_bytes: int, sweep_rows: float, cache: Cache, bypassed: bool
) -> float:
    """Return the bytes that a GEMM of `rows` x `depth` by `depth` x `columns` reads from memory.

    Parameters
    ----------
    sweep_rows : float
        Rows of the output that are made between two uses of the right operand.
    bypassed : bool
        Whether the output goes round the cache.
    """
    left_bytes = rows * depth * item_bytes
    right_bytes = depth * columns * item_bytes
    sweep_rows = min(sweep_rows, rows)
    passing = right_bytes + sweep_rows * depth * item_bytes
    if not bypassed:
        passing += sweep_rows * columns * item_bytes
    sweeps = rows / sweep_rows
    return left_bytes + right_bytes * (1 + (sweeps - 1) * missed(passing, cache))
