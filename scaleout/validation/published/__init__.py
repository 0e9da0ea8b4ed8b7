"""Published tables of runs on others' machines: one module a source, each with its `TABLES`.

`TABLES` maps the id of a table to what its rows are. To add some: a module with a `TABLES` of its own, and a line here.
"""

from collections.abc import Mapping

from scaleout.validation.published import llm_foundry, maxtext, megatron, nccl, reported, simumax, torchtitan, vtrain
from scaleout.validation.published.table import Table

TABLES: Mapping[str, Table] = {
    **nccl.TABLES,
    **megatron.TABLES,
    **vtrain.TABLES,
    **llm_foundry.TABLES,
    **torchtitan.TABLES,
    **maxtext.TABLES,
    **simumax.TABLES,
    **reported.TABLES,
}

__all__ = ["TABLES", "Table"]
