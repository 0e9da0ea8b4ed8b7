"""Operations of recommendation models to PyTorch calls: pooled embedding tables and the feature interaction.

All tables of a rank are one tensor, and one call looks up all of them.
"""

from collections.abc import Mapping

import torch
from torch.nn import functional

from scaleout.validation.measure.tensors import Call, Maker, Sizes, backward_of, call_of, random

_ROWS = 1_000_000
_TABLE_BYTES = 40e9
"""Limit of the memory of one call's tables; larger tables get fewer rows."""


def _indices(s: Sizes, rows: int) -> torch.Tensor:
    """Return the (bags, pooling) rows that the bags look up, one table after the other."""
    tables = torch.arange(s["tables"], device="cuda").repeat_interleave(s["batch"]) * rows
    return torch.randint(rows, (s["batch"] * s["tables"], s["pooling"]), device="cuda") + tables[:, None]


def _rows(s: Sizes) -> int:
    return min(_ROWS, int(_TABLE_BYTES / (4 * s["dim"] * s["tables"])))


def _bag(s: Sizes, dtype: torch.dtype) -> Call:
    table = torch.empty(s["rows"] * s["tables"], s["dim"], device="cuda", dtype=dtype).normal_()
    indices = _indices(s, s["rows"])
    return lambda: functional.embedding_bag(indices, table, mode="sum")


def _bag_back(s: Sizes, dtype: torch.dtype) -> Call:
    rows = _rows(s)
    table = torch.zeros(rows * s["tables"], s["dim"], device="cuda", dtype=dtype, requires_grad=True)
    indices = _indices(s, rows)
    return backward_of(lambda table: functional.embedding_bag(indices, table, mode="sum", sparse=True), table)


def _bag_update(s: Sizes, dtype: torch.dtype) -> Call:
    from scaleout.validation.measure.bags import update_rows  # noqa: PLC0415 - needs Triton

    rows = _rows(s)
    table = torch.zeros(rows * s["tables"], s["dim"], device="cuda", dtype=dtype)
    indices, gradient = _indices(s, rows), random(s["batch"] * s["tables"], s["dim"], dtype=dtype)
    return lambda: update_rows(table, indices, gradient)


def _gemms(x: torch.Tensor) -> torch.Tensor:
    return torch.bmm(x, x.transpose(1, 2))


def _interaction_bmm(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        x = random(s["batch"], s["features"], s["dim"], dtype=dtype, grad=backward)
        return call_of(_gemms, x, backward=backward)

    return make


def _interaction_gather(*, backward: bool) -> Maker:
    def make(s: Sizes, dtype: torch.dtype) -> Call:
        features = s["features"]
        x = random(s["batch"], features**2, dtype=dtype, grad=backward)
        rows, columns = torch.tril_indices(features, features, offset=-1, device="cuda")
        triangle = rows * features + columns
        return call_of(lambda x: x[:, triangle], x, backward=backward)

    return make


def _interaction_cat(s: Sizes, dtype: torch.dtype) -> Call:
    dense = random(s["batch"], 1, s["dim"], dtype=dtype)
    pooled = random(s["batch"], max(1, s["features"] - 1), s["dim"], dtype=dtype)
    return lambda: torch.cat((dense, pooled), dim=1)


def _interaction_cat_back(s: Sizes, dtype: torch.dtype) -> Call:
    gradient = random(s["batch"], max(2, s["features"]), s["dim"], dtype=dtype)
    return lambda: (gradient[:, :1].contiguous(), gradient[:, 1:].contiguous())


def _interaction_sum(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["batch"], s["features"], s["dim"], dtype=dtype)
    return lambda: x.sum(dim=1)


def _interaction_sum_back(s: Sizes, dtype: torch.dtype) -> Call:
    gradient = random(s["batch"], 1, s["dim"], dtype=dtype)
    return lambda: gradient.expand(-1, s["features"], -1).contiguous()


def _permute(s: Sizes, dtype: torch.dtype) -> Call:
    x = random(s["tables"], s["batch"], s["dim"], dtype=dtype)
    return lambda: x.transpose(0, 1).contiguous()


MAKERS: Mapping[str, Maker] = {
    "embedding_bag_fwd": _bag,
    "embedding_bag_bwd_sparse": _bag_back,
    "embedding_sgd_sparse": _bag_update,
    "permute_for_all_to_all": _permute,
    "interaction_bmm_fwd": _interaction_bmm(backward=False),
    "interaction_bmm_bwd": _interaction_bmm(backward=True),
    "interaction_gather_fwd": _interaction_gather(backward=False),
    "interaction_gather_bwd": _interaction_gather(backward=True),
    "interaction_sum_fwd": _interaction_sum,
    "interaction_sum_bwd": _interaction_sum_back,
    "interaction_cat_fwd": _interaction_cat,
    "interaction_cat_bwd": _interaction_cat_back,
}
"""Operation to the maker of its call."""
