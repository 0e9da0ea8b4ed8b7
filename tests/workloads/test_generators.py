"""Generated programs: FLOPs and payload equal closed forms, exactly, and their steps run on every kind of network.

The formulas below are written from the models' shapes, for one rank. A product of (m, k) by (k, n) is 2 m n k FLOPs;
its backward is two such products. A causal mask halves attention. The payload of a collective is its full buffer.

Symbols: b samples or sequences of a rank, s tokens of a sequence, t = b s; h hidden; f width of the feed-forward
network, with g matrices before it; v vocabulary; i bytes of an element.
"""

from itertools import pairwise

import numpy as np
import pytest

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate
from scaleout.workloads.families import FAMILIES, load_workload
from scaleout.workloads.generate import generate

HEADER = {"description": "a test", "source": "none", "topology": "ring-128", "device": "h200"}


def workload(kind, **keys):
    return FAMILIES[kind].model_validate(HEADER | {"kind": kind} | keys)


# ---- DLRM

DLRM = {
    "tables_per_rank": 3, "rows_per_table": 1000, "embedding_dim": 24, "pooling": 7, "dense_features": 13,
    "mlp_width": 40, "bottom_layers": 3, "top_layers": 4,
}  # fmt: skip


def dlrm_widths(w, interaction):
    d, vectors = w["embedding_dim"], w["tables_per_rank"] * w["data_parallel"] + 1
    wide = {"dot": vectors * (vectors - 1) // 2 + d, "cat": vectors * d, "sum": d}[interaction]
    bottom = [w["dense_features"]] + [w["mlp_width"]] * (w["bottom_layers"] - 1) + [d]
    top = [wide] + [w["mlp_width"]] * (w["top_layers"] - 1) + [1]
    return [list(pairwise(widths)) for widths in (bottom, top)]


def dlrm_totals(w, interaction, mode):
    """FLOPs and payload of a rank: MLPs on its samples, pairs of vectors, and two exchanges of pooled vectors."""
    b = w["global_batch"] // w["data_parallel"]
    vectors = w["tables_per_rank"] * w["data_parallel"] + 1
    bottom, top = dlrm_widths(w, interaction)
    forward = sum(2 * b * m * n for m, n in bottom + top)
    pairs = 2 * b * vectors * vectors * w["embedding_dim"] if interaction == "dot" else 0
    exchange = w["global_batch"] * w["tables_per_rank"] * w["embedding_dim"] * 4
    if mode == "forward":
        return forward + pairs, exchange
    # Two products backward, but the first layer's input is data, which needs no gradient.
    first_input = 2 * b * bottom[0][0] * bottom[0][1]
    gradients = sum(m * n for m, n in bottom + top) * 4 if w["data_parallel"] > 1 else 0
    return 3 * (forward + pairs) - first_input, 2 * exchange + gradients


@pytest.mark.parametrize("num_ranks", [1, 128, 1024])
@pytest.mark.parametrize("interaction", ["dot", "cat", "sum"])
@pytest.mark.parametrize("mode", ["training", "forward"])
def test_dlrm(num_ranks, interaction, mode):
    keys = DLRM | {"data_parallel": num_ranks, "global_batch": 2048}
    program = generate(workload("dlrm", interaction=interaction, mode=mode, **keys))
    flops, payload = dlrm_totals(keys, interaction, mode)
    assert program.num_ranks == num_ranks
    assert program.total_flops == num_ranks * flops
    assert program.payload_bytes == num_ranks * payload


# ---- Transformers, dense and mixture-of-experts

GPT = {"hidden": 64, "layers": 3, "heads": 16, "ffn": 224, "vocabulary": 320, "sequence": 48, "batch_per_replica": 2}
LLAMA = GPT | {"kv_heads": 8, "activation": "swiglu", "norm": "rms_norm", "rotary": True}
TIED = GPT | {"tied_embedding": True, "dtype": "fp32"}
HEADLESS = LLAMA | {"vocabulary": 0}
MIXTURE = LLAMA | {"experts": 8, "top_k": 2}


def shapes(w):
    """Sizes that the formulas share: tokens, matrices of a layer by (inputs, outputs), and what a norm learns."""
    h, tp = w["hidden"], w.get("tensor_parallel", 1)
    kv = h // w["heads"] * w.get("kv_heads", w["heads"])
    t = w["batch_per_replica"] * (1 if w.get("mode") == "decode" else w["sequence"])
    gates = 2 if w.get("activation") == "swiglu" else 1
    attention = [(h, (h + 2 * kv) // tp), (h // tp, h)]
    network = [(h, gates * w["ffn"] // tp), (w["ffn"] // tp, h)]
    scale = h * (1 if w.get("norm") == "rms_norm" else 2)
    return t, attention, network, scale


def weights(matrices):
    return sum(m * n for m, n in matrices)


def slices(w):
    """Parts of a replica's tokens that tensor-parallel ranks route each for itself: see test_moe_bytes."""
    shards = w.get("sequence_parallel", False) and w.get("expert_parallel", 1) > 1
    return w.get("tensor_parallel", 1) if shards else 1


def transformer_flops(w):
    t, attention, network, _ = shapes(w)
    h, tp, mode = w["hidden"], w.get("tensor_parallel", 1), w.get("mode", "training")
    b, s = w["batch_per_replica"], w["sequence"]
    layer = 2 * t * weights(attention)
    if "experts" in w:
        # Every token is scored by all experts and handled by top_k of them, here or on another rank.
        layer += 2 * t // slices(w) * h * w["experts"] + 2 * t * w["top_k"] * weights(network)
    else:
        layer += 2 * t * weights(network)
    logits = {"training": t, "prefill": b, "decode": b}[mode]
    products = w["layers"] * layer + 2 * logits * h * w["vocabulary"] // tp
    # Scores and their product with v: h / tp wide. In decode one query against the cache, no mask to halve it.
    scores = 2 * 2 * b * s * h // tp if mode == "decode" else 2 * 2 * b * s * s * h // tp // 2
    if mode != "training":
        return products + w["layers"] * scores
    return 3 * products + w["layers"] * (scores + scores * 5 // 2)  # backward: five products for two


def rank_parameters(w):
    """Parameters that a rank shares with its data-parallel peers, and those that only its experts' peers have."""
    _, attention, network, scale = shapes(w)
    tp, h = w.get("tensor_parallel", 1), w["hidden"]
    tables = 1 if w.get("tied_embedding") else 2
    dense = w["layers"] * (weights(attention) + 2 * scale) + scale + tables * w["vocabulary"] // tp * h
    if "experts" not in w:
        return dense + w["layers"] * weights(network), 0
    local = w["experts"] // w.get("expert_parallel", 1)
    return dense + w["layers"] * h * w["experts"], w["layers"] * local * weights(network)


def transformer_payload(w):
    t, _, _, scale = shapes(w)
    tp, dp, ep = (w.get(f"{axis}_parallel", 1) for axis in ("tensor", "data", "expert"))
    mode, sp = w.get("mode", "training"), w.get("sequence_parallel", False)
    item = 4 if w.get("dtype") == "fp32" else 2
    activations = t * w["hidden"] * item
    payload = 0
    if tp > 1:
        # A block: one all-reduce forward and one backward, or a gather and a scatter each way. The embedding ends
        # a block (SP: also gathers its gradient), the head begins one (its all-reduce is backward only).
        blocks, each = (2 if slices(w) == 1 else 1) * w["layers"], 2 if sp else 1
        head = 1 if w["vocabulary"] else 0
        forward = blocks * each + head + (head if sp else 0)
        payload += forward * activations
        if mode == "training":
            payload += (blocks * each + head + (head if sp else 0)) * activations
            payload += head * 3 * t * 4  # maximum, sum and target of each token's logits, in fp32
            # gradients of norms, and of routers, over parts of the tokens
            payload += (2 * w["layers"] + 1) * scale * item if sp else 0
            payload += w["layers"] * w["hidden"] * w["experts"] * item if slices(w) > 1 else 0
        else:
            payload += w["batch_per_replica"] * w["vocabulary"] * item  # logits
    if ep > 1:
        exchanges = 4 if mode == "training" else 2  # there and back, forward and backward
        rows = t * w["top_k"]
        payload += w["layers"] * exchanges * rows // slices(w) * w["hidden"] * item
        if slices(w) > 1:  # what arrives is gathered over the tensor axis, and its sums are scattered
            payload += w["layers"] * exchanges * rows * w["hidden"] * item
    if mode == "training":
        dense, experts = rank_parameters(w)
        payload += dense * item * (dp > 1) + experts * item * (dp // ep > 1)
    return payload


DEGREES = [
    {},
    {"data_parallel": 128},
    {"tensor_parallel": 8, "data_parallel": 16},
    {"tensor_parallel": 8, "data_parallel": 128, "sequence_parallel": True},
    {"tensor_parallel": 4, "data_parallel": 32, "sequence_parallel": True},
    {"tensor_parallel": 2, "data_parallel": 512},
]
MODES = ["training", "prefill", "decode"]


def check_totals(kind, keys):
    program = generate(workload(kind, **keys))
    ranks = keys.get("tensor_parallel", 1) * keys.get("data_parallel", 1)
    assert program.num_ranks == ranks
    assert program.total_flops == ranks * transformer_flops(keys)
    assert program.payload_bytes == ranks * transformer_payload(keys)
    return program


@pytest.mark.parametrize("degrees", DEGREES, ids=lambda d: "-".join(f"{k[0]}{int(v)}" for k, v in d.items()) or "one")
@pytest.mark.parametrize("model", [GPT, LLAMA, TIED, HEADLESS], ids=["gpt", "llama", "tied", "headless"])
@pytest.mark.parametrize("mode", MODES)
def test_transformer(model, degrees, mode):
    keys = model | degrees | {"mode": mode, "batch_per_replica": 8}
    check_totals("transformer", keys)


@pytest.mark.parametrize("expert_parallel", [1, 2, 8])
@pytest.mark.parametrize("degrees", DEGREES[1:], ids=lambda d: "-".join(f"{k[0]}{int(v)}" for k, v in d.items()))
@pytest.mark.parametrize("mode", MODES)
def test_moe(degrees, expert_parallel, mode):
    keys = MIXTURE | degrees | {"mode": mode, "expert_parallel": expert_parallel, "batch_per_replica": 32}
    check_totals("moe", keys)


def test_experts_on_all_data_parallel_ranks_need_no_reduction():
    alone = check_totals("moe", MIXTURE | {"data_parallel": 8, "expert_parallel": 8})
    graph = alone.graphs[0]
    reduced = graph.bytes[graph.collective == COLLECTIVES.index("all_reduce")].sum()
    assert reduced == rank_parameters(MIXTURE | {"expert_parallel": 8})[0] * 2


@pytest.mark.parametrize("bucket", [1, 10_000, 10**9])
def test_buckets_change_how_often_and_not_how_much(bucket):
    keys = LLAMA | {"data_parallel": 16, "gradient_bucket": f"{bucket} B"}
    program = check_totals("transformer", keys)
    sizes = program.graphs[0].bytes[program.graphs[0].kind == NodeKind.COLLECTIVE]
    assert (np.sort(sizes)[1:] >= bucket).all()  # the last one holds what is left
    assert (len(sizes) == 1) == (bucket == 10**9)


@pytest.mark.parametrize("mode", MODES)
def test_only_training_learns(mode):
    graph = generate(workload("transformer", **LLAMA | {"mode": mode})).graphs[0]
    operations = {call.op for call in graph.kernels}
    assert ("adamw_fused" in operations) == (mode == "training")
    assert ("attention_decode" in operations) == (mode == "decode")
    assert ("cross_entropy_fwd" in operations) == (mode == "training")


def test_without_an_optimizer_nothing_is_stepped():
    for kind, keys in (("transformer", LLAMA), ("dlrm", DLRM | {"global_batch": 64, "interaction": "dot"})):
        graph = generate(workload(kind, optimizer="none", **keys)).graphs[0]
        assert not {"adamw_fused", "sgd", "embedding_sgd_sparse"} & {call.op for call in graph.kernels}


def test_the_optimizer_waits_for_every_reduction():
    graph = generate(workload("transformer", **LLAMA | {"data_parallel": 16, "gradient_bucket": 10_000})).graphs[0]
    step = len(graph) - 1
    reductions = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist()
    assert graph.operation(step) == "adamw_fused"
    assert set(reductions) <= set(graph.dependencies_of(step).tolist())


# ---- Steps on networks

SMALL = ["ring-128", "torus-8x16", "switch-128", "dgx-h200-16"]
LARGE = ["ring-1024", "torus-32x32", "switch-1024", "dgx-h200-128"]


def steps(num_ranks):
    dp = num_ranks // 8
    mixture = MIXTURE | {"tensor_parallel": 8, "data_parallel": dp, "expert_parallel": 8}
    return {
        "dlrm": ("dlrm", DLRM | {"data_parallel": num_ranks, "global_batch": 2048, "interaction": "sum"}),
        "tensor": ("transformer", LLAMA | {"tensor_parallel": 8, "data_parallel": dp, "sequence_parallel": True}),
        "data": ("transformer", GPT | {"data_parallel": num_ranks}),
        "prefill": ("transformer", GPT | {"tensor_parallel": 8, "data_parallel": dp, "mode": "prefill"}),
        "decode": ("moe", mixture | {"mode": "decode", "batch_per_replica": 8}),
        "moe": ("moe", mixture),
    }


@pytest.fixture(scope="module")
def device():
    return load_device("h200")


@pytest.mark.parametrize("topology", SMALL + LARGE)
@pytest.mark.parametrize("step", steps(128))
def test_steps_run_on_every_kind_of_network(device, topology, step):
    network = load_topology(topology)
    kind, keys = steps(network.num_ranks)[step]
    timed = time_kernels(generate(workload(kind, **keys)), device)
    kernels_s = timed.graphs[0].duration_s[timed.graphs[0].kind == NodeKind.COMPUTE].sum()
    times = {}
    for schedule in ("baseline", "overlap", "overlap+fused"):
        result = simulate(apply_schedule(timed, schedule), network)
        assert len(result.timelines) == 1  # all ranks are alike, however many
        assert result.makespan_s >= kernels_s * (1 - 1e-12)
        times[schedule] = result.makespan_s
    line = simulate(apply_schedule(timed, "baseline"), network).timelines[0]
    assert times["baseline"] == pytest.approx(line.duration_s.sum(), rel=1e-12)
    assert times["baseline"] > kernels_s


def test_a_tied_table_is_reduced_once_both_its_gradients_are_there():
    """The head's and the embedding's gradient of one table are added, and only then reduced and stepped."""
    graph = generate(load_workload("gpt-3", {"tensor_parallel": 16, "data_parallel": 2})).graphs[0]
    operations = [graph.operation(node) for node in range(len(graph))]
    looked_up, total = operations.index("embedding_bwd"), graph.names.index("tied_gradients")
    head = graph.names.index("head_weight_gradient")
    assert set(graph.dependencies_of(total).tolist()) == {looked_up, head}
    reductions = [node for node, name in enumerate(graph.names) if name == "gradients_all_reduce"]
    assert [node for node in reductions if total in graph.dependencies_of(node)] == reductions[-1:]
    assert not any(head in graph.dependencies_of(node) for node in reductions)
