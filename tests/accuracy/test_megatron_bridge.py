"""Megatron-Bridge's published throughput: a row's plan by hand, and what is said of rows that cannot be expressed."""

import json
from pathlib import Path

import pytest

from scaleout.validation.measured.compare import compare_files
from scaleout.validation.measured.rows import Row
from scaleout.validation.published.megatron_bridge import workload_values
from scaleout.workloads.families import FAMILIES

SHARED = Path(__file__).parents[3] / "shared" / "validation" / "tables.json"
ROW = {
    "Model": "LLAMA3.1_405B", "#-GPUs": 1024, "Precision": "FP8-CS", "GBS": 512, "MBS": 1, "Sequence Length": 8192,
    "FSDP": 0, "TP": 8, "PP": 8, "CP": 2, "VP": 8, "EP": 1, "GA": 64, "Tokens / sec / GPU": 292,
    "_section": "Archive / 25.11 NeMo Container / Pre-Training Performance / System: DGX-H100",
}  # fmt: skip


def test_a_plan_by_hand():
    """1,024 GPUs are 8 replicas of 8 x 8 x 2, with 64 of 512 sequences each; 126 layers on 64 stages leave two less."""
    workload = FAMILIES["transformer"].model_validate(
        workload_values(Row(ROW, where="row 1", id="row", source="a test"))
        | {"description": "a test", "source": "none"}
    )
    assert (workload.data_parallel, workload.batch_per_replica, workload.num_ranks) == (8, 64, 1024)
    assert (workload.stage_layers[0], workload.stage_layers[1], workload.stage_layers[-1]) == (1, 2, 1)
    assert sum(workload.stage_layers) == workload.layers == 126
    assert (workload.linear_dtype, workload.sequence_parallel) == ("fp8_tensorwise", True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"Precision": "MXFP8"}, "no GEMMs in MXFP8 were measured"),
        ({"System": "DGX-GB300"}, "no device or no topology of so many nodes of DGX-GB300"),
        ({"Model": None, "_section": "x / Model: GPT OSS 120B", "System": "DGX-H100"}, "GPT OSS 120B has experts"),
        ({"Precision": None}, "does not say its precision"),
        ({"_section": "26.02 / LoRA Performance / System: DGX-H100"}, "LoRA packs sequences"),
        ({"FSDP": 64}, "Megatron-FSDP"),
        ({"TP": "1 (2)"}, "two values of TP"),
    ],
)
def test_a_row_that_cannot_be_expressed_says_why(tmp_path, changes, reason):
    path = tmp_path / "tables.json"
    values = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    path.write_text(json.dumps({"tables": [{"id": "megatron_bridge", "rows": [values]}]}))
    (found,) = compare_files([path], table="megatron_bridge").rows
    assert reason in found.reason


@pytest.mark.skipif(not SHARED.is_file(), reason=f"{SHARED} is not there")
def test_shared_rows_are_read_or_say_why(tmp_path):
    """All but the one on 1,024 GPUs, which takes a minute."""
    (rows,) = (each["rows"] for each in json.loads(SHARED.read_text())["tables"] if each["id"] == "megatron_bridge")
    path = tmp_path / "tables.json"
    kept = [values for values in rows if (values.get("System"), values["#-GPUs"]) != (None, 1024)]
    path.write_text(json.dumps({"tables": [{"id": "megatron_bridge", "rows": kept}]}))
    found = compare_files([path], table="megatron_bridge").rows
    assert len(found) == 114
    assert all(row.reason for row in found if row.predicted is None)
    (read,) = (row for row in found if row.predicted is not None)
    assert read.predicted == pytest.approx(read.measured, rel=0.12)
