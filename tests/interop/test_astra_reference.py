"""Every recorded run of ASTRA-sim 2.0 (commit 518bd51), by category: the same nanoseconds, or a reason in a list.

The rows and their inputs lie beside the repository, in ``../shared/reference/astra-sim``; without them the tests skip
and say so. All rows run by default; they take a quarter of a minute.
"""

import json
import tarfile
from functools import cache
from pathlib import Path

import pytest

from scaleout.errors import ScaleoutError
from scaleout.interop import astra

REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference" / "astra-sim"

REFUSED = {
    "edge_order_deadlock": ("ASTRA-sim hangs: ranks come to two groups in different order", "cannot finish"),
    "edge_missing_rank_coll": ("ASTRA-sim hangs: a rank never arrives", "rank 3 has finished and never arrives"),
    "edge_mismatched_size_coll": ("ASTRA-sim hangs: sizes differ", "all members must issue the same collectives"),
    "edge_recv_without_send": ("ASTRA-sim leaves a rank unfinished, in silence", "rank 0 waits for node 0"),
    "edge_send_without_recv": ("ASTRA-sim counts a message that nobody receives", "never receives"),
    "edge_zero_size_ag": ("ASTRA-sim hangs on an all-gather of 0 bytes", "all-gather of 0 bytes"),
    "edge_metadata": ("ASTRA-sim aborts on metadata nodes", "METADATA_NODE"),
    "edge_barrier": ("ASTRA-sim aborts on barriers", "BARRIER"),
    "edge_group_dbt": ("ASTRA-sim crashes on trees in groups", "doubleBinaryTree crashes"),
    "edge_no_splits": ("ASTRA-sim crashes without splits", "'preferred-dataset-splits' is missing"),
    "edge_non_pow2_hd": ("ASTRA-sim hangs on 6 ranks", "power of two"),
    "edge_non_pow2_dbt": ("ASTRA-sim crashes on 6 ranks", "power of two"),
    "edge_shared_bus": ("the memory bus of model-shared-bus=1 is not described; 100158 ns there", "model-shared-bus"),
}
"""Case to why it has no time here, and words of the message."""

OPTIONS = {
    "--num-queues-per-dim": lambda value: {"num_queues": int(value)},
    "--rendezvous-protocol": lambda value: {"rendezvous": True},
    "--comm-scale": lambda value: {"comm_scale": float(value)},
}


@cache
def rows():
    return json.loads((REFERENCE / "reference.json").read_bytes())


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """Unpack the archives once."""
    if not REFERENCE.exists():
        pytest.skip(f"the recorded runs of ASTRA-sim are not there: {REFERENCE}")
    folder = tmp_path_factory.mktemp("astra-sim")
    for name in ("et.tar.xz", "cases.tar.xz"):
        with tarfile.open(REFERENCE / name) as archive:
            archive.extractall(folder, filter="data")
    return folder


def options(row, folder):
    case = folder / "cases" / row["case"]
    groups = case / "comm_group.json"
    chosen = {}
    for flag in row.get("extra_flags", []):
        name, _, value = flag.partition("=")
        chosen |= OPTIONS[name](value)
    return astra.Options(
        workload=folder / row["workload_prefix"],
        system=case / "system.json",
        network=case / "network.yml",
        groups=groups if groups.exists() else None,
        backend=row["backend"],
        **chosen,
    )


def differences(row, outcome):
    """What a row recorded and we say otherwise."""
    ours = {
        "time_ns": outcome.time_ns,
        "time_ns_min": min(outcome.per_rank_ns),
        "exposed_comm_ns_max": max(outcome.exposed_ns),
        "npus_finished": len(outcome.per_rank_ns),
        "per_npu_ns": list(outcome.per_rank_ns),
        "all_npus_equal": len(set(outcome.per_rank_ns)) == 1,
    }
    return {name: (value, row[name]) for name, value in ours.items() if name in row and row[name] != value}


@pytest.mark.parametrize("backend", astra.BACKENDS)
@pytest.mark.parametrize("category", ["collectives", "graphs", "edge_cases"])
def test_every_row_has_its_nanoseconds(inputs, category, backend):
    chosen = [row for row in rows()[category] if row["backend"] == backend and row["case"] not in REFUSED]
    wrong = {}
    for row in chosen:
        found = differences(row, astra.run(options(row, inputs)))
        if found:
            wrong[row["case"]] = found
    assert not wrong, f"{len(wrong)} of {len(chosen)} rows differ (ours, recorded)"
    assert chosen


@pytest.mark.parametrize("case", REFUSED)
def test_the_other_rows_are_refused_with_a_reason(inputs, case):
    found = [row for row in rows()["edge_cases"] if row["case"] == case]
    assert found
    for row in found:
        with pytest.raises(ScaleoutError, match=REFUSED[case][1]):
            astra.run(options(row, inputs))


def test_the_first_rank_of_a_trace_has_its_statistics(inputs):
    """ASTRA-sim's GPU time and communication time of NPU 0, where they were recorded."""
    recorded = [row for row in rows()["graphs"] if "sys0_stats" in row]
    assert recorded
    for row in recorded:
        outcome = astra.run(options(row, inputs))
        text = "\n".join(row["sys0_stats"])
        assert f"GPU time: {outcome.compute_ns[0]}" in text
        assert f"Comm time: {outcome.communication_ns[0]}" in text
