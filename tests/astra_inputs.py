"""Small inputs of ASTRA-sim for tests: nodes of its traces, its other files, and what the command line answers."""

import json

from chakra_messages import CollectiveCommType, GlobalMetadata, Node, NodeType, traced, write

ALGORITHMS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def node(number, kind, *, deps=(), micros=0, **attributes):
    found = [traced(name, value) for name, value in {"is_cpu_op": False, **attributes}.items()]
    kind = NodeType[f"{kind}_NODE"]
    return Node(id=number, name=f"n{number}", type=kind, data_deps=deps, duration_micros=micros, attr=found)


def coll(number, kind, size, **more):
    return node(number, "COMM_COLL", comm_type=CollectiveCommType[kind], comm_size=size, **more)


def send(number, target, size, tag=0, **more):
    return node(number, "COMM_SEND", comm_dst=target, comm_tag=tag, comm_size=size, **more)


def recv(number, source, size, tag=0, **more):
    return node(number, "COMM_RECV", comm_src=source, comm_tag=tag, comm_size=size, **more)


def comp(number, micros=1, **more):
    return node(number, "COMP", micros=micros, **more)


def times(answer):
    code, out, err = answer
    assert (code, err) == (0, ""), err
    return json.loads(out)


def write_inputs(
    folder, ranks, *, algorithm="ring", groups=None, network=None, system=None, drop=(), counts=None, kind="Ring"
):
    """Write all files of a job; return the options that name them."""
    for rank, nodes in enumerate(ranks):
        write(folder / f"w.{rank}.et", GlobalMetadata(version="0.0.4"), nodes)
    counts = counts or [len(ranks)]
    names = algorithm if isinstance(algorithm, list) else [algorithm] * len(counts)
    lists = {"topology": [kind] * len(counts), "npus_count": counts}
    lists |= {"bandwidth": [27.0] * len(counts), "latency": [500.0] * len(counts), **(network or {})}
    (folder / "network.yml").write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in lists.items()))
    values = {"endpoint-delay": 10, "preferred-dataset-splits": 1, "local-mem-bw": 1000}
    values |= {f"{each}-implementation": names for each in ALGORITHMS} | (system or {})
    text = json.dumps({key: value for key, value in values.items() if key not in drop})
    (folder / "system.json").write_text(text)
    options = [f"--workload-configuration={folder / 'w'}", "--system-configuration", str(folder / "system.json")]
    options += [f"--network-configuration={folder / 'network.yml'}"]
    if groups:
        (folder / "groups.json").write_text(json.dumps(groups))
        options += ["--comm-group-configuration", str(folder / "groups.json")]
    return options
