"""Tables of `run` and `search`: what belongs to no phase, what adds up to more than a step, and what is not known."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def fsdp():
    """A small FSDP2 job with a slow rank, whose loss belongs to no phase."""
    return ("run", "llama-3-8b", "--set", "layers=2", "--set", "framework=fsdp2", "--set", "tensor_parallel=1",
            "--set", "data_parallel=8", "--set", "zero=3", "--topology", "dgx-h200-1", "--slow", "5=1.3",
            "--schedule", "overlap", "-v")  # fmt: skip


def test_every_row_of_phases_has_a_name(scaleout, fsdp):
    code, out, err = scaleout(*fsdp)
    assert code == 0, err
    for title in ("busy time by phase", "ranks of overlap", "critical path of overlap"):
        rows = out.partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()
        assert rows[0].startswith("phase")
        assert all(re.match(r"\w", row) for row in rows), title
    assert out.partition("\nranks of overlap\n")[2].count("\nno phase ") == 1


def test_an_empty_line_is_before_each_heading(scaleout, fsdp):
    lines = scaleout(*fsdp)[1].splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("next measurement: "))
    assert lines[at + 1] == ""


def test_what_adds_up_to_more_than_all_communication_says_so_in_its_row(scaleout):
    """Slices of a fused all-reduce are on their way at the same time: 44.8 ms of a step of 17.2 ms."""
    job = ("run", "llama-3-70b", "--set", "mode=decode", "--set", "tensor_parallel=8", "--set", "data_parallel=1",
           "--set", "pipeline_parallel=1", "--set", "layers=4", "--set", "batch_per_replica=64", "--topology",
           "dgx-h200-1")  # fmt: skip
    _, out, _ = scaleout(*job, "--schedule", "baseline", "--schedule", "fused")
    by_operation = out.partition("busy time by operation")[2].partition("\n\n")[0]
    assert re.search(r"^all_reduce +communication, calls added up ", by_operation, re.MULTILINE)
    assert re.search(r"^all_gather +communication  ", by_operation, re.MULTILINE)
    assert " busy, calls added up " in out
    assert "calls added up" not in scaleout(*job, "--schedule", "baseline")[1]


def test_a_rent_that_is_not_known_is_said_so(scaleout):
    job = ("run", "dlrm-dcnv2", "--device", "a100-80g", "--topology", "dgx-a100-1", "--schedule", "baseline")
    _, out, _ = scaleout(*job)
    words = " ".join(out.replace("│", " ").split())
    assert "rent not known: no price of a100-80g with a source; for yours give --device a file with" in words


@pytest.mark.parametrize(("device", "topology"), [("a100-80g", "dgx-a100-1"), ("h100", "dgx-h100-1")])
def test_estimates_name_their_kernels_also_where_all_are(scaleout, device, topology):
    job = ("run", "dlrm-dcnv2", "--set", "dtype=tf32", "--device", device, "--topology", topology)
    _, out, _ = scaleout(*job, "--schedule", "baseline")
    words = " ".join(out.replace("│", " ").split())
    assert re.search(
        rf"of their time is a roofline estimate; not measured on {device}: embedding_adagrad_sparse \d", words
    )


def test_shares_of_estimates_are_those_of_the_box_and_what_is_not_known_says_why(scaleout):
    """Sustained clocks slow down measured GEMMs less where they wait, so that shares differ by schedule."""
    job = ("run", "llama-3-8b", "--set", "data_parallel=16", "--topology", "a100-cluster-a-2")
    _, out, _ = scaleout(*job, "--device", "a100-80g", "--schedule", "baseline", "--schedule", "overlap")
    words = " ".join(out.replace("│", " ").split())
    boxed, kernel = re.search(
        r"kernels ([\d.]+%) of their time is a roofline .* attention_gqa_bwd ([\d.]+%)", words
    ).groups()
    under, told = re.search(r"kernel times under (\w+): measured .* roofline ([\d.]+%)", words).groups()
    noted = re.search(r"note: not measured on a100-80g: attention_gqa_bwd, ([\d.]+%)", words).group(1)
    assert (under, told, noted) == ("overlap", boxed, kernel)
    assert "not in the energy, as their power is not known: dimension 0 (switch), which names no link type; " in words
    assert "list price" not in words
    assert (
        "list price: not known of dimension 0 (switch), which names no"
        in scaleout(*job, "--device", "a100-80g", "-v")[1]
    )


def test_a_list_of_devices_says_how_many_operations_were_measured(scaleout):
    found = json.loads(scaleout("list", "devices", "--json")[1])["listed"]["devices"]
    rows = {row["name"]: row["description"] for row in found}
    assert rows["a100-80g"].endswith("; kernels of 1 operation measured, others estimated from h200")
    assert rows["tpu-v4"].endswith("; kernels estimated from h200")
    assert re.search(r"; kernels of \d+ operations measured, others estimated from alike ones$", rows["h200"])


def test_a_schedule_that_runs_as_a_simpler_one_says_so(scaleout):
    """One rank has nothing to overlap; chunks of dlrm's all-reduces gain nothing, and what is left is overlap."""
    _, out, _ = scaleout("run", "dlrm-128", "--schedule", "baseline", "--schedule", "overlap", "--schedule", "coconet")
    below = out.partition("\nschedules\n")[2]
    assert "\n\ncoconet runs as overlap: its own step would take the same\n\n" in below
    one = ("run", "llama-3-8b", "--set", "layers=2", "--set", "tensor_parallel=1", "--topology", "dgx-h200-1", "--gpus")
    _, out, _ = scaleout(*one, "1", "--schedule", "overlap")
    assert "under overlap, which runs as baseline" in " ".join(out.replace("│", " ").split())
    assert "\noverlap runs as baseline: it finds nothing to change\n" in out


def test_a_plan_stands_once_among_the_fastest(scaleout):
    """Of six evaluations two are of plans above under the baseline; rows keep their numbers, as `--plan DIR#3` has."""
    job = ("search", "llama-3-8b", "--set", "layers=4", "--topology", "dgx-h200-1", "--global-batch", "16", "--workers",
           "1", "--schedule", "overlap", "--top", "6")  # fmt: skip
    _, out, _ = scaleout(*job)
    found = json.loads(scaleout(*job, "--json")[1])["fastest"]
    plans = [each["plan"] for each in found]
    again = [str(number) for number, plan in enumerate(plans, start=1) if plan in plans[: number - 1]]
    assert again
    table, _, below = out.partition("\nthe fastest plans\n")[2].partition("\n\n")
    rows = [line.split()[0] for line in table.splitlines()[1:]]
    assert sorted(rows + again) == [str(number) for number in range(1, 7)]
    assert below.startswith("left out, as each is the same plan as one above, under a schedule that is no faster: ")
    assert below.partition("faster: ")[2].startswith(f"{', '.join(again)} (")


def test_plans_have_one_number_in_all_tables_of_a_search(scaleout):
    """That of the list and of `--plan`, also in the Pareto fronts; plans that are not in the list have letters."""
    job = ("search", "llama-3-8b", "--set", "layers=4", "--topology", "dgx-h200-1", "--global-batch", "16", "--workers",
           "1", "--schedule", "overlap", "--top", "6", "--set", "sequence_parallel=false")  # fmt: skip
    _, out, _ = scaleout(*job)
    answer = json.loads(scaleout(*job, "--json")[1])
    _, *fronts = out.split("\nleast memory for the step time (Pareto front)")
    rows = [line for front in fronts for line in front.split("\n\n")[0].splitlines() if ", microbatch " in line]
    numbers = [row.split()[0] for row in rows]
    letters = [number for number in numbers if number.isalpha()]
    assert letters == list("abcdefghijklmnopqrstuvwxyz"[: len(letters)])
    numbered = [(int(number), row) for number, row in zip(numbers, rows, strict=True) if number.isdigit()]
    assert [number for number, _ in numbered] != list(range(1, len(numbered) + 1))
    for number, row in numbered:
        plan = answer["fastest"][number - 1]["plan"]
        assert f"microbatch {plan['microbatch']}, zero {plan['zero']}" in row
    assert "\nnumbers: the fastest plans; letters: not among these (--top); --plan takes both" in out
    done, chosen, left, ruled_out = (
        int(each.replace(",", ""))
        for each in re.search(
            r"\n([\d,]+) plans under overlap: ([\d,]+) simulated, ([\d,]+) less .*, ([\d,]+) that",
            " ".join(out.split(" ")),
        ).groups()
    )
    assert done == chosen + left + ruled_out
    for each in answer["fastest"]:  # without a pipeline nobody waits for it, but all for the host
        assert each["plan"]["pipeline_parallel"] == 1
        assert each["bubble"] == each["bubble_s"] == 0 < each["host_s"]


def test_the_critical_path_names_the_slow_rank(scaleout, fsdp):
    out = scaleout(*fsdp)[1]
    heading, *rows = out.partition("\ncritical path of overlap\n")[2].partition("\n\n")[0].splitlines()
    assert heading.endswith("  most on rank")
    assert rows[0].startswith("head_backward ")
    assert rows[0].endswith(" 5 (100%)")


def test_the_critical_path_of_ranks_alike_names_none(scaleout, fsdp):
    alike = [each for each in fsdp if each not in ("--slow", "5=1.3")]
    assert "most on rank" not in scaleout(*alike)[1]


@pytest.mark.parametrize(
    ("like", "more"), [("h100", "rent: {value: 3 USD/h, source: mine}"), ("dgx-h100-2", ""), ("dlrm-128", "")]
)
def test_a_file_like_another_is_shown_as_what_that_is(scaleout, tmp_path, like, more):
    """One like a device was held for a topology, as it names neither of the keys that tell devices apart."""
    (tmp_path / "own.yaml").write_text(f"like: {like}\n{more}\n")
    code, out, err = scaleout("show", tmp_path / "own.yaml")
    assert (code, err) == (0, "")
    assert "own" in out
    (tmp_path / "own.yaml").write_text("like: h1000\n")
    code, _, err = scaleout("show", tmp_path / "own.yaml")
    assert code == 2
    assert "like: unknown name 'h1000'; did you mean 'h100'" in err


def test_exposed_times_that_overlap_are_said_to_add_up_to_more(scaleout):
    """Gathers of parameters run beside exchanges of experts: the table adds up to more than the box says."""
    job = ("run", "mixtral-8x7b", "--set", "framework=fsdp2", "--set", "layers=2", "--gpus", "64", "--device", "h100")
    out = " ".join(scaleout(*job)[1].split())
    (exposed,) = re.findall(r"exposed (\S+ \S+) of communication", out)
    assert f"exposed counts for each of those that run at the same time; together it is {exposed}" in out
    assert "counts for each" not in scaleout("run", "dlrm-128", "--schedule", "baseline")[1]
