"""Embedding tables over ranks: what each rank holds, looks up and exchanges, against naive counts."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.config.validated import validate
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.program.program import alike
from scaleout.workloads.families import Dlrm, load_workload
from scaleout.workloads.families.sharding import EmbeddingTable, Step, plan_of
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak

KEYS = {
    "kind": "dlrm", "description": "", "source": "", "topology": "ring-8", "device": "h200", "embedding_dim": 8,
    "dense_features": 5, "mlp_width": 16, "bottom_layers": 2, "top_layers": 2, "interaction": "cat", "column_width": 4,
}  # fmt: skip
ITEM = 4

tables_ = st.lists(
    st.fixed_dictionaries(
        {
            "rows": st.integers(8, 5000),
            "pooling": st.integers(1, 40),
            "count": st.integers(1, 4),
            "sharding": st.sampled_from((None, "auto", "table_wise", "row_wise", "column_wise")),
        }
    ),
    min_size=1,
    max_size=7,
)


def dlrm(tables, ranks=1, *, batch=16, **keys):
    values = KEYS | {"data_parallel": ranks, "global_batch": batch * ranks, "tables": tables}
    return validate(Dlrm, values | keys, where="here")


def nodes(graph, op):
    return [node for node in range(len(graph)) if graph.operation(node) == op]


def lookups(graph, op):
    """Rows that kernels of an operation look up, and columns of these."""
    calls = [graph.kernels[graph.kernel[node]].sizes for node in nodes(graph, op)]
    return sum(c["batch"] * c["tables"] * c["pooling"] * c["dim"] for c in calls)


@settings(max_examples=60, deadline=None)
@given(tables=tables_, ranks=st.sampled_from((1, 2, 4, 8)), optimizer=st.sampled_from(("sgd", "adagrad", "none")))
def test_look_ups_and_rows_are_conserved(tables, ranks, optimizer):
    """All ranks together look every index of every sample up once, at full width, and hold every row."""
    job = dlrm(tables, ranks, optimizer=optimizer)
    program = generate(job)
    update = {"sgd": "embedding_sgd_sparse", "adagrad": "embedding_adagrad_sparse", "none": "embedding_bag_bwd_sparse"}
    naive = sum(t["count"] * t["pooling"] for t in tables) * job.global_batch * job.embedding_dim
    for op in ("embedding_bag_fwd", update[optimizer]):
        assert sum(lookups(program.graphs[role], op) for role in program.role_of_rank.tolist()) == naive
    held = sum(map(job.plan.parameters_of, range(ranks)))
    whole = sum(t["count"] * t["rows"] for t in tables) * job.embedding_dim
    rounded_up = sum(bags.width for bags in job.plan.row_wise) * (ranks - 1)
    assert whole <= held <= whole + rounded_up
    assert peak(job).total_bytes >= max(map(job.plan.parameters_of, range(ranks))) * ITEM


@settings(max_examples=60, deadline=None)
@given(tables=tables_, ranks=st.sampled_from((2, 4, 8)), mode=st.sampled_from(("training", "forward")))
def test_exchanges_are_those_of_a_naive_count(tables, ranks, mode):
    """Vector by vector: who makes it, who needs it; and of row-wise tables a sum from every rank to every other."""
    job = dlrm(tables, ranks, mode=mode)
    program = generate(job)
    local = job.local_batch
    sums = sum(bags.tables for bags in job.plan.row_wise)
    for rank in range(ranks):
        graph = program.graphs[program.role_of_rank[rank]]
        before = sum(bags.tables * bags.dim for bags in job.plan.exchanged[rank] for _ in range(job.global_batch))
        after = sum(bags.tables * bags.dim for mine in job.plan.exchanged for bags in mine for _ in range(local))
        expected = Counter()
        if after:
            expected["all_to_all"] = max(before, after) * ITEM
        if sums:
            expected["reduce_scatter"] = ranks * local * sums * job.embedding_dim * ITEM
        if mode == "training":
            expected = Counter({kind: count * (2 if kind == "all_to_all" else 1) for kind, count in expected.items()})
            if sums:
                expected["all_gather"] = ranks * local * sums * job.embedding_dim * ITEM
        found = Counter()
        for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
            if COLLECTIVES[graph.collective[node]] != "all_reduce":
                found[COLLECTIVES[graph.collective[node]]] += int(graph.bytes[node])
        assert found == expected


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_equal_tables_are_the_job_of_tables_per_rank(ranks):
    one = generate(dlrm((), ranks, tables_per_rank=3, rows_per_table=100, pooling=5))
    tables = [{"rows": 100, "pooling": 5, "count": ranks}] * 3
    assert alike(one, generate(dlrm(tables, ranks, sharding="table_wise")))
    assert len(one.graphs) == 1


def step(ranks, **keys):
    given = {"batch": 64, "dim": 8, "dtype": "fp32", "update": "embedding_sgd_sparse", "exchange_cost": 10.0} | keys
    return Step(ranks=ranks, **given)


def naive_cost(asked, pooling, *, share=1, exchange=10.0):
    """Bytes by hand: indices and rows read, vectors written, forward; gradients, rows twice backward; what is sent."""
    row, looked_up = asked.dim * ITEM, asked.batch // share * pooling
    forward = looked_up * (row + 8) + asked.batch * row
    backward = looked_up * (3 * row + 8) + asked.batch // share * row
    return forward + backward + exchange * 2 * asked.batch * row * (asked.ranks - 1) / asked.ranks


@settings(max_examples=60, deadline=None)
@given(tables=tables_, ranks=st.sampled_from((2, 4, 8)))
def test_a_rank_costs_what_it_holds(tables, ranks):
    plain = tuple(EmbeddingTable(**t | {"sharding": None}) for t in tables)
    asked = step(ranks)
    plan = plan_of(plain, asked)
    assert {bags.dim for mine in plan.exchanged for bags in mine} <= {asked.dim}
    for mine, cost in zip(plan.exchanged, plan.costs, strict=True):
        whole = sum(bags.tables * naive_cost(asked, bags.pooling) for bags in mine)
        rows = sum(bags.tables * naive_cost(asked, bags.pooling, share=ranks) for bags in plan.row_wise)
        assert cost == pytest.approx(whole + rows, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(poolings=st.lists(st.integers(1, 60), min_size=1, max_size=7), ranks=st.integers(2, 3))
def test_whole_tables_are_placed_as_well_as_graham_says(poolings, ranks):
    """The busiest rank is at most 4/3 - 1/(3p) of the best of all placements, which are tried one by one."""
    tables = tuple(EmbeddingTable(rows=50, pooling=pooling) for pooling in poolings)
    asked = step(ranks, batch=ranks * 32, sharding="table_wise")
    of_one = [naive_cost(asked, table.pooling) for table in tables]
    best = min(
        max(sum(cost for cost, at in zip(of_one, places, strict=True) if at == rank) for rank in range(ranks))
        for places in itertools.product(range(ranks), repeat=len(tables))
    )
    found = max(plan_of(tables, asked).costs)
    assert best * (1 - 1e-12) <= found <= (4 / 3 - 1 / (3 * ranks)) * best * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(tables=tables_, ranks=st.sampled_from((2, 4)))
def test_auto_is_no_busier_than_whole_tables_nor_than_rows(tables, ranks):
    def busiest(kind):
        plain = tuple(EmbeddingTable(**t | {"sharding": None}) for t in tables)
        return max(plan_of(plain, step(ranks, sharding=kind)).costs)

    assert busiest("auto") <= min(busiest("table_wise"), busiest("row_wise")) * (1 + 1e-12)


def test_mlperf_is_skewed_and_fits():
    """The published tables; the one with a hundred look-ups is cut by rows; ranks differ; each has room."""
    job = load_workload("dlrm-dcnv2")
    assert sum(t.rows for t in job.tables) == 204_184_588
    assert sum(t.pooling for t in job.tables) == 214
    assert [(bags.pooling, bags.tables) for bags in job.plan.row_wise] == [(100, 1)]
    assert len(generate(job).graphs) == 8
    assert job.plan.imbalance < 1.2
    assert peak(job).total_bytes < 141e9
    # 26 tables, MLPs, and cross layers: 3 x 2 x 27 x 128 x 512
    dense = 13 * 512 + 512 * 256 + 256 * 128 + 3456 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert job.num_parameters == 204_184_588 * 128 + dense + 3 * 2 * 3456 * 512


@pytest.mark.parametrize("schedule", ["baseline", "overlap", "fused", "centauri", "overlap+fused", "fused-oblivious"])
@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_every_schedule_runs(schedule, network):
    import scaleout

    changes = {"global_batch": 4096}
    found = scaleout.run("dlrm-dcnv2", schedules=["baseline", schedule], changes=changes, network=network)
    base, other = (each.breakdown.makespan_s for each in found.outcomes[:1] + found.outcomes[-1:])
    if schedule in ("fused", "centauri"):
        assert other <= base


def test_an_uneven_exchange_lasts_as_long_as_its_largest():
    """Three tables on two ranks: the exchange is that of two tables each."""
    import scaleout

    def exchanged(count):
        job = dlrm([{"rows": 100, "pooling": 1, "count": count}], 2, batch=2**18, sharding="table_wise", mode="forward")
        found = scaleout.compare(job, topology="switch(2,nvlink4)", schedules=["baseline"])
        (line, *_) = found.outcomes[0].result.timelines
        node = nodes(line.graph, "all_to_all")[0]
        return line.end_s[node] - line.start_s[node]

    sizes = [[int(g.bytes[nodes(g, "all_to_all")[0]]) for g in generate(dlrm(
        [{"rows": 100, "count": 3}], 2, sharding="table_wise", mode="forward")).graphs]]  # fmt: skip
    assert sizes == [[2 * 32 * 8 * ITEM, 3 * 16 * 8 * ITEM]]
    assert exchanged(3) >= exchanged(4) * 0.999
    assert exchanged(3) > exchanged(2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tables": []}, "tables_per_rank is missing; give tables_per_rank, rows_per_table, pooling for tables "
         "that are alike, or tables for tables that differ"),
        ({"pooling": 4}, "tables is for tables that differ and pooling for tables that are alike; leave one out"),
        ({"tables": [{"rows": 3}], "sharding": "row_wise"}, "a table of 3 rows cannot be cut row_wise over 4 ranks"),
        ({"sharding": "column_wise", "column_width": 3}, "column_width 3 does not divide embedding_dim 8"),
        ({"sharding": "column_wise", "column_width": None}, "column_wise tables need column_width"),
        ({"table_memory": "512B"}, "tables do not fit into table_memory 512 B on 4 ranks"),
        ({"bottom_mlp": [16, 8]}, "bottom_mlp is for widths and mlp_width for one width; leave one out"),
        ({"mlp_width": None, "bottom_layers": None, "top_layers": None, "bottom_mlp": [16, 8]}, "top_mlp is missing"),
        ({"mlp_width": None, "bottom_layers": None, "top_layers": None, "bottom_mlp": [16], "top_mlp": [1]},
         "bottom_mlp ends with 16; end it with embedding_dim 8"),
        ({"tables": [{"rows": 0}]}, "tables.0.rows"),
        ({"tables": [{"row": 5}]}, "unknown key 'tables.0.row'; did you mean"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(keys, message):
    with pytest.raises(ConfigError) as error:
        dlrm(**{"tables": [{"rows": 100}], "ranks": 4} | keys)
    assert message in str(error.value)


def test_plain_bags_are_a_call_an_entry_each_way():
    """PyTorch's modules: entries that are equal are two calls, not one; several tables of an entry are one."""
    tables = [{"rows": 40, "pooling": 2}, {"rows": 40, "pooling": 2}, {"rows": 9, "pooling": 2, "count": 3}]
    for gradients, wanted in (("sparse", [5]), ("dense", [1, 1, 3])):
        (graph,) = generate(dlrm(tables, table_gradients=gradients)).graphs
        for direction in ("fwd", {"sparse": "sgd_sparse", "dense": "bwd_dense"}[gradients]):
            op = f"embedding_{'' if direction == 'sgd_sparse' else 'bag_'}{direction}"
            calls = [graph.kernels[graph.kernel[node]].sizes for node in nodes(graph, op)]
            assert [call["tables"] for call in calls] == wanted
            assert sum(call["batch"] * call["tables"] * call["pooling"] for call in calls) == 16 * 5 * 2


def test_biases_of_mlps_are_held_and_summed():
    """Layers of 16, 8, 16 and 1 outputs: a bias each, and a sum over samples in backward."""
    plain, biased = (dlrm([{"rows": 40}], biases=biases) for biases in (False, True))
    assert biased.num_parameters - plain.num_parameters == 16 + 8 + 16 + 1
    sums = [[len(nodes(graph, "sum_all")) for graph in generate(job).graphs] for job in (plain, biased)]
    assert sums == [[0], [4]]
