"""Host execution traces by hand: a rank's operators, one after another, with the sizes of their tensors."""

import gzip
import json
from pathlib import Path

_ATTRIBUTES = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")


def identity(storage):
    """Return how a node calls a tensor on the GPU: id, storage, offset, elements, bytes of each, device."""
    return [1000 + storage, storage, 0, 1, 4, "cuda:0"]


class Host:
    """What one rank's host called; schema 1.0.1 has other keys than later ones."""

    def __init__(self, rank=0, *, schema="1.1.1-chakra.0.0.4", process=100, world_size=None, time="2026-01-01 10:00:00",
                 lasts_ms=100):  # fmt: skip
        self.rank, self.old = rank, schema == "1.0.1"
        self.facts = {"schema": schema, "pid": process, "time": time, "start_ts": 5000, "finish_ts": 5000 + lasts_ms}
        self.nodes = []
        self.numbers = 0
        self.root = self._node("[pytorch|profiler|execution_trace|process]", 1, 0)
        self.threads = {}
        if world_size:
            groups = [{"pg_name": "default", "pg_desc": "default_pg", "ranks": [], "group_size": world_size}]
            self.operator("## process_group:init ##", values=[json.dumps(groups)], types=["String"])

    def _node(self, name, parent, thread, inputs=((), (), ()), *, outputs=(), record=0, **more):
        self.numbers += 1
        values, shapes, types = map(list, inputs)
        results = [[identity(storage) for storage, _ in outputs], [list(dims) for _, dims in outputs],
                   ["Tensor(float)" for _ in outputs]]  # fmt: skip
        facts = dict(zip(_ATTRIBUTES, (record, 0, -1, 0, thread, 0, ""), strict=True)) | more
        node = {"id": self.numbers, "name": name}
        if self.old:
            node |= {"parent": parent, "inputs": values, "input_shapes": shapes, "input_types": types, **facts}
            node |= dict(zip(("outputs", "output_shapes", "output_types"), results, strict=True))
        else:
            node |= {"ctrl_deps": parent, "inputs": {"values": values, "shapes": shapes, "types": types},
                     "outputs": dict(zip(("values", "shapes", "types"), results, strict=True)),
                     "attrs": [{"name": key, "type": "", "value": value} for key, value in facts.items()]}  # fmt: skip
        self.nodes.append(node)
        return self.numbers

    def operator(
        self, name, *, dims=(), dtypes=None, values=None, types=None, thread=1, parent=None, storages=None, **more
    ):
        """Call an operator on tensors of some sizes; return the id of its node.

        `storages` are those of the tensors; `outputs` are pairs of storage and sizes, of float32.
        """
        if thread not in self.threads:
            mark = "[pytorch|profiler|execution_trace|thread]"
            self.threads[thread] = self._node(mark, self.root, thread)
        if types is None:
            types = [f"Tensor({dtype})" for dtype in dtypes or ["float"] * len(dims)]
            values = [identity(storage) for storage in storages or range(len(types))]
            shapes = [list(each) for each in dims]
        else:
            shapes = [list(each) for each in dims] or [[] for _ in types]
        parent = self.threads[thread] if parent is None else parent
        return self._node(name, parent, thread, (values, shapes, types), **more)

    def collective(self, kind="allreduce", *, elements=1000, rank=None, group=None, sequence=7, **more):
        """Call a collective: as attributes tell it, or in 1.0.1 as its inputs do."""
        start, stride, size = group or (0, 1, 1)
        rank = self.rank if rank is None else rank
        values = [[1, 2, 0, elements, 4, "cuda:0"], sequence, [f"{start} by {stride}", "some"], rank, kind, [], [],
                  start, stride, size]  # fmt: skip
        types = ["Tensor(float)", "Int", "Tuple[String,String]", "Int", "String", "GenericList[]", "GenericList[]",
                 "Int", "Int", "Int"]  # fmt: skip
        if self.old:
            values[2:3], types[2:3] = [94594108284448], ["Int"]
            values, types = values[:-3], types[:-3]
        dims = [[elements], *([] for _ in types[1:])]
        return self.operator("record_param_comms", dims=dims, values=values, types=types, **more)

    def wait(self, sequence=7):
        """Wait for a collective."""
        return self.operator("record_param_comms", values=[sequence, "wait"], types=["Int", "String"])

    def content(self):
        """Return the JSON value of the file; nodes are listed as they ended."""
        return {**self.facts, "nodes": self.nodes[::-1]}

    def write(self, folder, *, name="job", zipped=False):
        """Write the file of the rank; return its path."""
        text = json.dumps(self.content()).encode()
        path = Path(folder, f"{name}.rank{self.rank}.host.json{'.gz' if zipped else ''}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text, mtime=0) if zipped else text)
        return path
