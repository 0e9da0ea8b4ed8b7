"""A matrix product in stages: tiles of the output to what each stage reads, multiplies and writes.

A stage holds ``units x tiles_per_unit`` tiles; the last one what is left, and the fullest unit decides how long it
multiplies. Tiles go row by row or column by column,
whichever reads less, as libraries order them. Symbols: S stages; M x K times K x N.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.device import Device
from scaleout.errors import ConfigError
from scaleout.operations import ITEM_BYTES
from scaleout.operators.track.cache import Cache, read_bytes
from scaleout.product_stages import Stages

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Product:
    """Sizes of a matrix product; `split_depth` work-groups share a tile and add up what they make (split-K)."""

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
        """Two for each product and sum."""
        return 2 * self.rows * self.columns * self.depth


@dataclass(frozen=True, eq=False)
class Staged:
    """What the stages of a product do.

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
        """Return the time of the product with the memory to itself: each stage reads, multiplies and writes."""
        return float(self.compute_s.sum() + (self.read_bytes.sum() + self.write_bytes.sum()) / memory_bytes_per_s)


def constants_of(device: Device) -> Stages:
    """Return how a device runs products in stages.

    Raises
    ------
    ConfigError
        If its file does not say.
    """
    if device.stages is None:
        raise ConfigError(
            f"device {device.name!r} does not say how it runs products in stages; add `stages` to its file, "
            f"as in traces/t3-gpu.yaml, or take --device t3-gpu"
        )
    return device.stages


def stage(
    product: Product, device: Device, *, alone_s: float, units: int | None = None, bypassed: bool = False
) -> Staged:
    """Cut a product into stages.

    Parameters
    ----------
    alone_s : float
        What the product takes alone on the whole device: the time to multiply is what reading and writing leave of it.
    units : int, optional
        Compute units that work on it; all of the device by default. A stage of fewer holds fewer tiles.
    bypassed : bool
        Whether the output goes round the last-level cache.

    Raises
    ------
    ConfigError
        If the device does not say how it runs products in stages.
    """
    constants = constants_of(device)
    units = device.num_sms if units is None else units
    whole = _tiles(product, constants, device.num_sms)
    memory_s = (_reads(product, device, constants, whole[0], bypassed=False) + _written(product)) / (
        device.memory_bytes_per_s
    )
    tile_s = max(alone_s - memory_s, 0.0) / np.ceil(whole / device.num_sms).sum()
    tiles = _tiles(product, constants, units)
    share = tiles / tiles.sum()
    reads = _reads(product, device, constants, tiles[0], bypassed=bypassed)
    return Staged(
        tiles, product.output_bytes * share, np.ceil(tiles / units) * tile_s, reads * share, _written(product) * share
    )


def _tiles(product: Product, constants: Stages, units: int) -> Floats:
    """Tiles of each stage."""
    down = math.ceil(product.rows / constants.tile_rows)
    across = math.ceil(product.columns / constants.tile_columns)
    total = down * across * product.split_depth
    held = units * constants.tiles_per_unit
    tiles = np.full(math.ceil(total / held), float(held))
    tiles[-1] = total - held * (len(tiles) - 1)
    return tiles


def _written(product: Product) -> float:
    """Bytes that the product writes: partial tiles of a split product are added where they are written."""
    return float(product.output_bytes * product.split_depth)


def _reads(product: Product, device: Device, constants: Stages, held: float, *, bypassed: bool) -> float:
    """Bytes that the whole product reads, tiles in the order that reads less."""
    cache = Cache(device.l2_bytes, constants.cache_ways)
    across = math.ceil(product.columns / constants.tile_columns)
    down = math.ceil(product.rows / constants.tile_rows)
    ways = (
        (product.rows, product.columns, constants.tile_rows, across),
        (product.columns, product.rows, constants.tile_columns, down),
    )
    return min(
        read_bytes(
            rows,
            columns,
            product.depth,
            item_bytes=ITEM_BYTES[product.dtype],
            sweep_rows=max(1.0, held / product.split_depth / line) * tile,
            cache=cache,
            bypassed=bypassed,
        )
        for rows, columns, tile, line in ways
    )
