"""Memory: published activations, bytes worked by hand, and what is counted part by part against whole stages.

Symbols: s tokens of a sequence; b sequences of a micro-batch; h hidden; a heads; L layers; t, p degrees of tensor and
pipeline parallelism; v chunks; V vocabulary.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.spec import load_device
from scaleout.config.library import names
from scaleout.errors import ConfigError
from scaleout.workloads import memory
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import FAMILIES, load_workload
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.step import stages_of
from scaleout.workloads.memory import KINDS, Ledger, moments_of, peak, peaks
from scaleout.workloads.memory.advice import advise
from scaleout.workloads.pipeline import PIPELINES, Action
from scaleout.workloads.pipeline.blocks import blocks

GIB = 2**30
HEADER = {"description": "a test", "source": "none", "topology": "ring-128", "device": "h200"}
SMALL = {"hidden": 64, "layers": 8, "heads": 16, "ffn": 224, "vocabulary": 320, "sequence": 48, "batch_per_replica": 8}
MIXTURE = SMALL | {"kind": "moe", "kv_heads": 8, "activation": "swiglu", "experts": 8, "top_k": 2, "dense_layers": 3}
LATENT = {"query_rank": 24, "key_value_rank": 16, "plain_dim": 8, "rotary_dim": 4, "value_dim": 8}


def workload(keys):
    keys = HEADER | {"kind": "transformer"} | keys
    return FAMILIES[keys["kind"]].model_validate(keys)


# ---- Shipped jobs

PAPERS = {"future-10t", "future-1t", "llama-large", "llama-medium", "mega-gpt-2", "mt-nlg", "palm", "t-nlg"}
"""Jobs of papers that do not fit, as their descriptions say, which `list` prints."""


@pytest.mark.parametrize("name", names("workload"))
def test_shipped_jobs_fit_their_device_but_those_that_say_so(name):
    job = load_workload(name)
    if isinstance(job, LayeredModel):
        capacity_bytes = load_device(job.device).memory_bytes
        assert (peak(job).total_bytes > capacity_bytes) == (name in PAPERS)
    assert job.description.endswith("; does not fit its device") == (name in PAPERS)


def test_the_job_of_131072_gpus_fits():
    job = load_workload("gpt-3", {"tensor_parallel": 8, "data_parallel": 16384, "zero": 1})
    assert peak(job).total_bytes < load_device("h200").memory_bytes


# ---- Published: Korthikanti et al., arXiv:2205.05198, Fig. 1, GiB of a GPU

PUBLISHED = {
    "megatron-22b": (45.5625, 59.25, 9.5625),
    "megatron-175b": (45.5625, 66.84375, 12.3515625),
    "megatron-530b": (31.640625, 114.0234375, 23.076171875),
    "megatron-1t": (32.958984375, 131.25, 26.5625),
}
"""Parameters and optimizer; activations without recompute; with sequence parallelism and selective recompute."""

NONE = {"sequence_parallel": False, "recompute": "none", "keep_gathered": True}


def test_activations_as_published():
    errors = []
    for name, (_, plain, selective) in PUBLISHED.items():
        for changes, published in ((NONE, plain), ({}, selective)):
            errors.append(peak(load_workload(name, changes)).bytes_of["activations"] / GIB / published - 1)
    assert np.mean(np.abs(errors)) < 0.03
    assert min(errors) > 0  # the paper leaves out embedding, head and loss


def test_parameters_and_optimizer_as_published():
    """The paper counts 18 bytes a parameter of the layers; the table of the first stage comes on top."""
    for name, (published, _, _) in PUBLISHED.items():
        found = peak(load_workload(name)).bytes_of
        job = load_workload(name)
        table = 18 * job.vocabulary // job.tensor_parallel * job.hidden
        states = found["parameters"] + found["gradients"] + found["optimizer_states"]
        assert states - table == pytest.approx(published * GIB, rel=2e-3)


def test_175b_by_hand():
    """``s b h L (10 + 24 / t + 5 a s / (h t)) (1 + (p - 1) / (p v))`` of the layers, on the first place."""
    job = load_workload("megatron-175b", NONE | {"vocabulary": 0})
    s, h, a, t, p, v, layers = 2048, 12288, 96, 8, 8, 3, 96
    formula = s * h * layers * (10 + 24 / t + 5 * a * s / (h * t)) * (1 + (p - 1) / (p * v))
    found = peak(job)
    assert found.bytes_of["activations"] == pytest.approx(formula, rel=1e-12)
    assert (found.rank, sum(found.in_flight)) == (0, v * p + p - 1)
    assert formula / GIB == pytest.approx(66.84375, rel=1e-6)


# ---- Parts and whole stages

JOBS = st.fixed_dictionaries(
    {
        "tensor_parallel": st.sampled_from([1, 2, 4]),
        "context_parallel": st.sampled_from([1, 2]),
        "pipeline_parallel": st.sampled_from([1, 2, 4]),
        "pipeline_schedule": st.sampled_from([*sorted(PIPELINES), "interleaved_1f1b", "interleaved_1f1b"]),
        "microbatch_group": st.sampled_from([None, None, 4, 6, 8, 16]),
        "microbatch": st.sampled_from([1, 2]),
        "sequence_parallel": st.booleans(),
        "keep_gathered": st.booleans(),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "attention": st.sampled_from(["flash", "unfused"]),
        "context_exchange": st.sampled_from(["ring", "all_gather", "ulysses"]),
        "dropout": st.booleans(),
        "tied_embedding": st.booleans(),
        "vocabulary": st.sampled_from([0, 320]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "data_parallel": st.sampled_from([1, 4]),
        "dtype": st.sampled_from(["bf16", "fp32"]),
        "latent": st.sampled_from([None, LATENT]),
        "transient_memory": st.booleans(),
        "loss": st.sampled_from(["unfused", "fused", "in_place"]),
        "placeholder_gradients": st.booleans(),
    }
)


def valid(keys):
    """The workload of some keys, or None if they cannot be."""
    try:
        return workload(keys)
    except (ConfigError, ValueError):
        return None


CHANGES = [
    *({"recompute": each} for each in ("none", "selective", "full")),
    *({"zero": each} for each in range(4)),
    *({"dtype": each} for each in ("bf16", "fp32")),
    *({"pipeline_schedule": each} for each in ("1f1b", "gpipe", "interleaved_1f1b", "zb_h1")),
    {"gradient_dtype": "fp32"}, {"transient_memory": True}, {"data_parallel": 2}, {"microbatch": 4},
    {"pipeline_parallel": 2}, {"gradient_bucket": 2**30}, {"master_weights": False},
]  # fmt: skip
"""By which a job may differ from one whose memory was counted before."""


@settings(max_examples=200, deadline=None)
@given(JOBS, st.sampled_from([SMALL, MIXTURE]), st.sampled_from(CHANGES))
def test_memory_does_not_depend_on_what_was_counted_before(keys, model, changes):
    keys = model | keys | {"microbatch_group": None, "batch_per_replica": 16}
    before, job = valid(keys), valid(keys | changes)
    if before is None or job is None:
        return
    memory._terms.cache_clear()
    alone = Ledger.of(job)
    memory._terms.cache_clear()
    Ledger.of(before)
    again = Ledger.of(job)
    assert again.persistent == alone.persistent
    assert again.peak_bytes.tolist() == alone.peak_bytes.tolist()


@settings(max_examples=60, deadline=None)
@given(JOBS, st.sampled_from([SMALL, MIXTURE]), st.sampled_from([(), (1, 3, 0, 4)]))
def test_parts_add_up_to_whole_stages(keys, model, uneven):
    job = valid(model | keys | {"stage_layers": uneven, "batch_per_replica": 16})
    if job is None:
        return
    for parts, stages in zip(Ledger.of(job).stages, stages_of(job, Axes(job)), strict=True):
        for part, stage in zip(parts, stages, strict=True):
            tape = stage.tape
            assert part.kept_bytes == pytest.approx(tape.kept_bytes)
            entering = 0 if stage.last else stage.rank.elements * job.item_bytes
            made = tape.transient_bytes(entering) if job.transient_memory and tape.spans else 0
            if made and (tape.recompute_bytes or job.zero >= 2):  # some of it is of other parts than what is made
                gradients = job.gradient_bytes * sum(tape.parameters.values())
                assert made <= part.beyond_bytes * (1 + 1e-9)
                assert part.beyond_bytes <= (tape.recompute_bytes + made + gradients) * (1 + 1e-9)
            else:
                assert part.recompute_bytes == pytest.approx(tape.recompute_bytes)
                assert part.transient_bytes - part.freed_bytes == pytest.approx(made)
            assert part.weights == (tape.weights if job.placeholder_gradients else set())
            assert part.all_recompute_bytes == pytest.approx(tape.all_recompute_bytes)
            assert part.parameters == (tape.parameters.get("dense", 0), tape.parameters.get("experts", 0))


@settings(max_examples=60, deadline=None)
@given(JOBS, st.sampled_from([SMALL, MIXTURE]))
def test_the_peak_is_that_of_all_slots(keys, model):
    """Oracle: go through the slots of each rank one by one and add up what is held."""
    job = valid(model | keys | {"batch_per_replica": 16})
    if job is None:
        return
    found = blocks(
        job.pipeline_schedule, stages=job.pipeline_parallel, microbatches=job.num_microbatches, chunks=job.chunks,
        group=job.microbatch_group,
    )  # fmt: skip
    for rank, (stages, order, highest) in enumerate(zip(Ledger.of(job).stages, found.orders, peaks(job), strict=True)):
        most = 0.0
        kept, waiting = set(), set()
        for slot in order:
            again = 0.0
            for step in slot:
                key, held = (step.chunk, step.microbatch), stages[step.chunk]
                if step.action == Action.FORWARD:
                    kept.add(key)
                elif step.action == Action.INPUT_GRADIENT:
                    waiting.add(key)
                elif step.action == Action.BACKWARD:
                    again += held.beyond_bytes
            total = sum(stages[chunk].kept_bytes for chunk, _ in kept)
            total += sum(stages[chunk].all_recompute_bytes for chunk, _ in waiting) + again
            most = max(most, total)
            done = {(s.chunk, s.microbatch) for s in slot if s.action in (Action.BACKWARD, Action.WEIGHT_GRADIENT)}
            kept -= done
            waiting -= done
        assert highest.rank == rank
        passing = ("activations", "recomputed_activations", "transient_memory")
        assert sum(highest.bytes_of[kind] for kind in passing) == pytest.approx(most)
    worst = max(peaks(job), key=lambda each: each.total_bytes)
    assert peak(job).total_bytes == pytest.approx(worst.total_bytes)


# ---- By hand

MODEL = SMALL | {"vocabulary": 0, "norm": "rms_norm"}
LAYER = 4 * 64 * 64 + 2 * 64 * 224 + 2 * 64
"""Parameters of a layer: attention, network, two norms."""
ALL = 8 * LAYER + 64


@pytest.mark.parametrize(
    ("zero", "expected"),
    [(0, (2, 4, 12)), (1, (2, 4, 12 / 4)), (2, (2, 4 / 4, 12 / 4)), (3, (2 / 4, 4 / 4, 12 / 4))],
)
def test_zero_divides_states_then_gradients_then_parameters(zero, expected):
    job = workload(MODEL | {"zero": zero, "data_parallel": 4, "gradient_dtype": "fp32"})
    found = peak(job).bytes_of
    assert [found[kind] / ALL for kind in KINDS[:3]] == pytest.approx(list(expected), rel=1e-6)


def test_hybrid_sharding_divides_by_the_ranks_that_shard():
    job = workload(MODEL | {"zero": 3, "data_parallel": 8, "context_parallel": 2, "shard_ranks": 4})
    assert peak(job).bytes_of["parameters"] == 2 * ALL / 4


def test_states_of_the_optimizer():
    for keys, each in (
        ({}, 12),
        ({"master_weights": False}, 8),
        ({"dtype": "fp32"}, 8),
        ({"moment_dtype": "bf16"}, 8),
        ({"optimizer": "none"}, 0),
    ):
        assert peak(workload(MODEL | keys)).bytes_of["optimizer_states"] == each * ALL


def test_gathered_layers_are_buffers():
    """ZeRO-3: the layer at work and those fetched ahead, whole; and one layer's gradients before they are scattered."""
    keys = MODEL | {"zero": 3, "data_parallel": 4, "gradient_bucket": "1 B"}
    for changes, layers in (({}, 2), ({"prefetch": 0}, 1), ({"prefetch": 3}, 4)):
        assert peak(workload(keys | changes)).bytes_of["communication_buffers"] == (layers + 1) * 2 * LAYER
    kept = peak(workload(keys | {"reshard_after_forward": False})).bytes_of["communication_buffers"]
    assert kept == 2 * ALL + 2 * LAYER


def test_buffers_of_exchanges():
    """Of 384 tokens: a ring holds keys and values of two ranks, and backward their gradients; experts send and get."""
    tokens, item = 8 * 48 // 2, 2
    ring = workload(MODEL | {"context_parallel": 2})
    assert peak(ring).bytes_of["communication_buffers"] == 4 * 2 * tokens * 64 * item
    gathered = workload(MODEL | {"context_parallel": 2, "context_exchange": "all_gather"})
    assert peak(gathered).bytes_of["communication_buffers"] == 2 * 2 * tokens * 64 * item
    experts = workload(MIXTURE | {"data_parallel": 2, "expert_parallel": 2})
    assert peak(experts).bytes_of["communication_buffers"] == 2 * (2 * tokens) * 2 * 64 * item


def test_the_cache_of_keys_and_values():
    """Llama 3 8B, 8 heads of 128: 128 KiB a token; DeepSeek-V2's latent is 512 + 64 numbers a token and layer."""
    decode = load_workload("llama-3-8b", {"mode": "decode", "sequence": 8191, "batch_per_replica": 4})
    assert peak(decode).bytes_of["kv_cache"] * decode.tensor_parallel == 4 * 8192 * 128 * 2**10
    latent = workload(MODEL | {"latent": LATENT, "mode": "prefill", "tensor_parallel": 4})
    assert peak(latent).bytes_of["kv_cache"] == 8 * 8 * 48 * (16 + 4) * 2
    assert peak(latent).bytes_of["gradients"] == peak(latent).bytes_of["optimizer_states"] == 0
    assert peak(latent).moment == "all of the pass"


def test_dualpipe_holds_two_copies_and_its_fold_one():
    keys = MODEL | {"pipeline_parallel": 4, "microbatch": 1, "batch_per_replica": 16}
    plain, two_way, fold = (
        sum(each.bytes_of["parameters"] for each in peaks(workload(keys | {"pipeline_schedule": name})))
        for name in ("1f1b", "dualpipe", "dualpipe_v")
    )
    assert two_way == 2 * plain == 2 * fold


def test_weights_put_off_hold_all_that_was_computed_again():
    keys = MODEL | {"pipeline_parallel": 4, "microbatch": 1, "batch_per_replica": 16, "recompute": "full"}
    whole, parted = (
        peaks(workload(keys | {"pipeline_schedule": name}))[3].bytes_of["recomputed_activations"]
        for name in ("1f1b", "zb_h1")
    )
    assert parted >= 2 * whole > 0


def test_larger_groups_of_micro_batches_hold_more():
    """(v - 1) L + 2 p - 1 chunks on the first place, of 2 layers each; whatever was put into the forward, no more."""
    keys = MODEL | {
        "pipeline_parallel": 2, "microbatch": 1, "batch_per_replica": 8, "pipeline_schedule": "interleaved_1f1b",
    }  # fmt: skip
    one = peak(workload(MODEL | {"layers": 2, "batch_per_replica": 1})).bytes_of["activations"]
    norm = 2 * 48 * 64  # of the last one, in front of no head
    for group, chunks in ((None, 5), (2, 5), (4, 7), (6, 9), (8, 11)):
        found = peaks(workload(keys | {"microbatch_group": group}))[0]
        assert found.bytes_of["activations"] == chunks * (one - norm)
        overlapped = {"overlap_gradient_reduce": True, "overlap_parameter_gather": True, "zero": 1, "data_parallel": 2}
        assert peaks(workload(keys | overlapped | {"microbatch_group": group}))[0].in_flight == found.in_flight


def test_moments_that_can_be_the_peak_are_few():
    job = load_workload("megatron-175b")
    assert len(moments_of(job).rank) < job.pipeline_parallel * job.num_microbatches


def test_the_moment_in_words():
    found = peak(load_workload("megatron-1t"))
    assert found.moment == "step 65 of 1024 (backward of micro-batch 0), 64 micro-batches in flight"


def test_a_pipeline_caches_the_keys_of_its_own_layers():
    keys = {"mode": "decode", "sequence": 8191, "batch_per_replica": 4, "tensor_parallel": 1, "data_parallel": 1}
    whole = peak(load_workload("llama-3-8b", keys)).bytes_of["kv_cache"]
    found = peaks(load_workload("llama-3-8b", keys | {"pipeline_parallel": 4, "microbatch": 1}))
    assert [each.bytes_of["kv_cache"] for each in found] == [whole / 4] * 4


def test_experts_lie_over_fewer_replicas_where_an_axis_takes_some():
    """DeepSeek-V3 decoded on 72 GPUs of 184 GiB: 8 ranks of experts divide neither 36 nor 18 replicas."""
    keys = {"mode": "decode", "pipeline_parallel": 1, "data_parallel": 72, "expert_parallel": 8}
    found = [each for each in advise(load_workload("deepseek-v3", keys), 184 * 2.0**30) if each.fits]
    within = min(found, key=lambda advice: advice.ranks)
    assert within.ranks == 72
    assert within.changes["data_parallel"] % within.changes["expert_parallel"] == 0


def test_advice_pairs_two_simple_changes():
    """A 32B model, data parallel over 16 of 80 GB: no change alone is enough on as many ranks, and these two are."""
    plain = {"data_parallel": 16, "zero": 0, "recompute": "none", "topology": "dgx-a100-2"}
    *singles, together = advise(load_workload("qwen-3-32b", plain), 80e9)
    assert not any(each.fits and each.ranks == 16 for each in singles)
    layers = together.changes["recompute_layers"]
    assert (dict(together.changes), together.fits) == (
        {"zero": 3, "recompute": "full", "recompute_layers": layers},
        True,
    )


@pytest.mark.parametrize("given", [{}, {"recompute": "full", "recompute_layers": 59}], ids=["none", "too few"])
def test_advice_recomputes_as_few_layers_as_fit(given):
    """Llama 3 70B under zero 3 on 64 H100 without tensor parallelism: 60 of 80 layers fit, 59 do not."""
    keys = {"zero": 3, "tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 64}
    capacity = load_device("h100").usable_bytes
    job = load_workload("llama-3-70b", keys | given)
    (found,) = [each for each in advise(job, capacity) if "recompute_layers" in each.changes]
    assert found.changes["recompute_layers"] == 60
    fewer = load_workload("llama-3-70b", keys | {"recompute": "full", "recompute_layers": 59})
    assert found.fits
    assert found.peak.total_bytes <= capacity < peak(fewer).total_bytes


def test_advice_for_ranks_that_are_enough_asks_for_no_more():
    """Llama 3 70B on 64 H100: three times the ranks in three stages are no help to who has 64."""
    keys = {"zero": 3, "tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 64}
    found = advise(load_workload("llama-3-70b", keys), load_device("h100").usable_bytes)
    assert any(each.fits for each in found)
    assert {each.ranks for each in found} == {64}


def test_advice_has_zero_with_a_smaller_micro_batch_where_it_is_not_enough_alone():
    """Of micro-batches that fit beside zero 3 the largest: smaller ones take longer."""
    keys = {"tensor_parallel": 1, "data_parallel": 8, "zero": 1, "recompute": "none", "batch_per_replica": 4}
    held = {size: peak(load_workload("llama-3-8b", {**keys, "zero": 3, "microbatch": size})) for size in (4, 2, 1)}
    job = load_workload("llama-3-8b", {**keys, "microbatch": 4})
    for size in (4, 2, 1):
        advice = advise(job, held[size].total_bytes)
        (found,) = [each for each in advice if "zero" in each.changes and "data_parallel" not in each.changes]
        changes = {"zero": 3} if size == 4 else {"zero": 3, "microbatch": size}
        assert (dict(found.changes), found.fits) == (changes, True)
