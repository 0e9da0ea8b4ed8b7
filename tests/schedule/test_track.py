"""Tracked and triggered GEMMs: stages, cache, memory, and what T3's configurations make of a sub-layer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.device.kernel_times import kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.operations import kernel
from scaleout.schedule.t3.gemm import Cache, Gemm, constants_of, memory_rate, missed, read_bytes, regions_of, stage
from scaleout.schedule.t3.memory import (
    COMPUTE_FIRST,
    DEDICATED,
    FIRST_READY,
    POLICIES,
    ROUND_ROBIN,
    Ring,
    policy_named,
    threshold_of,
)
from scaleout.schedule.t3.sublayer import (
    CONFIGURATIONS,
    DIRECT,
    GATHER,
    Sublayer,
    TrackSettings,
    outcomes_of,
    sublayer_of,
)
from scaleout.validation.papers import t3

GPU = load_device("t3-gpu")
LINK, LATENCY_S = 75e9, 500e-9


def sublayer(tokens=8192, hidden=4256, depth=1064, ranks=16, device=GPU, **changes):
    """FC-1 of T-NLG on 16 ranks, unless said otherwise."""
    isolated_s = kernel_time(device, kernel("gemm", dtype="fp16", M=tokens, N=hidden, K=depth)).seconds
    return Sublayer(Gemm(tokens, hidden, depth), Ring(ranks, LINK, LATENCY_S), device, isolated_s, **changes)


sublayers = st.builds(
    sublayer,
    tokens=st.sampled_from([512, 2048, 8192]),
    hidden=st.sampled_from([1024, 4256, 12288]),
    depth=st.integers(64, 4096),
    ranks=st.integers(2, 33),
    policy=st.sampled_from([None, *POLICIES.values()]),
    trigger_bytes=st.sampled_from([2e5, 2.0**19, 1e7]),
)


def brute_force_ring(ranks):
    """Chunks that one rank's memory reads and writes in a ring reduce-scatter, by doing it."""
    held = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    received = [{} for _ in range(ranks)]
    reads, writes = [0] * ranks, [0] * ranks
    for step in range(ranks - 1):
        sent = {}
        for rank in range(ranks):
            chunk = (rank - step) % ranks
            reads[rank] += 1 if chunk not in received[rank] else 2
            sent[(rank + 1) % ranks] = (chunk, held[rank][chunk] | received[rank].get(chunk, set()))
        for rank, (chunk, data) in sent.items():
            received[rank][chunk] = data
            writes[rank] += 1
    for rank in range(ranks):
        chunk = (rank + 1) % ranks
        reads[rank] += 2
        writes[rank] += 1
        assert held[rank][chunk] | received[rank][chunk] == set(range(ranks))
    return reads[0], writes[0]


@pytest.mark.parametrize("ranks", [2, 3, 8, 16])
def test_bytes_of_a_ring_reduce_scatter_are_those_of_doing_it(ranks):
    traffic = Ring(ranks, LINK, LATENCY_S).reduce_scatter_traffic(float(ranks))
    assert (traffic.scatter_reads, traffic.scatter_writes) == brute_force_ring(ranks)


def test_bytes_of_sequential_execution_in_closed_form():
    """M x N of 2 bytes on 8 ranks: written once, 15 chunks read and 8 written, then 7 and 7."""
    layer = sublayer(ranks=8)
    size = 8192 * 4256 * 2
    found = CONFIGURATIONS["sequential"](layer).traffic
    assert found.gemm_writes == pytest.approx(size)
    assert found.gemm_reads >= (8192 + 4256) * 1064 * 2
    assert found.scatter_reads == pytest.approx(15 / 8 * size)
    assert found.scatter_writes == pytest.approx(size)
    assert found.gather_reads == found.gather_writes == pytest.approx(7 / 8 * size)


@pytest.mark.parametrize(("ranks", "published"), [(8, 2.5), (16, 2.2)])
def test_every_byte_that_tracking_saves_is_attributed(ranks, published):
    """Published: reads of the reduce-scatter fall 2.5 and 2.2 times, writes by 14% and 7% (T3, Sec. 6.2)."""
    layer = sublayer(ranks=ranks)
    chunk = layer.gemm.output_bytes / ranks
    before, after = (CONFIGURATIONS[name](layer).traffic for name in ("sequential", "t3-mca"))
    assert before.scatter_reads / after.scatter_reads == pytest.approx(published, abs=0.05)
    first_chunk_elsewhere = before.gemm_writes - after.gemm_writes
    assert first_chunk_elsewhere == pytest.approx(chunk)
    assert before.scatter_reads - after.scatter_reads == pytest.approx((ranks + 1) * chunk)
    assert before.scatter_writes - after.scatter_writes == pytest.approx(chunk)
    cache_reads = before.gemm_reads - after.gemm_reads
    assert cache_reads >= 0
    assert before.total - after.total == pytest.approx((ranks + 3) * chunk + cache_reads)


@settings(max_examples=60, deadline=None)
@given(layer=sublayers)
def test_laws_of_tracking(layer):
    done = CONFIGURATIONS["t3"](layer)
    size, ranks = layer.gemm.output_bytes, layer.ring.ranks
    chunk = size / ranks
    link_s = (ranks - 1) * chunk / LINK
    assert done.fused_s >= max(done.gemm_s, link_s) * (1 - 1e-9)
    assert done.gemm_s >= stage(layer.gemm, GPU, isolated_s=layer.isolated_s, bypassed=True).compute_s.sum()
    assert done.traffic.gemm_writes + chunk == pytest.approx(size)
    assert done.traffic.scatter_reads == pytest.approx((ranks - 2) * chunk, abs=1.0)
    assert done.traffic.scatter_writes == pytest.approx((ranks - 1) * chunk)
    assert done.overlapped.stage_ends_s == tuple(sorted(done.overlapped.stage_ends_s))


@settings(max_examples=30, deadline=None)
@given(layer=sublayers)
def test_ideal_is_never_slower_than_sequential_nor_faster_than_each_part(layer):
    alone, ideal, near = (CONFIGURATIONS[name](layer) for name in ("sequential", "ideal", "ideal-nmc"))
    assert near.total_s <= ideal.total_s <= alone.total_s
    assert ideal.fused_s == max(alone.gemm_s, alone.reduce_scatter_s)


@settings(max_examples=30, deadline=None)
@given(layer=sublayers)
def test_stages_take_what_the_product_takes_alone(layer):
    staged = stage(layer.gemm, GPU, isolated_s=layer.isolated_s)
    memory_s = staged.read_s.sum() + staged.write_bytes.sum() / memory_rate(GPU)
    launch_s = constants_of(GPU).kernel_launch
    assert staged.isolated_s == pytest.approx(max(layer.isolated_s, memory_s) + launch_s, rel=0.02)


def test_ring_times_by_hand():
    """64 MiB on 4 ranks: a launch, 3 steps of 16 MiB at 75 GB/s and 500 ns; at the end 48 MiB through the memory.

    Of four accesses in a row one meets its own bank group again: 5 cycles for 4, a third of them writes, whose queue of
    64 turns the bus for 21 cycles.
    """
    ring, chunk, launch_s = Ring(4, LINK, LATENCY_S), 2**24, 5000 / 1.4e9
    steps_s = 3 * (chunk / LINK + LATENCY_S)
    added_s = 3 * chunk / 1e12 * (5 / 4 + 21 / 64 / 3)
    assert ring.all_gather_s(4 * chunk, GPU, units=80) == pytest.approx(steps_s + launch_s, rel=1e-5)
    assert ring.reduce_scatter_s(4 * chunk, GPU, units=80) == pytest.approx(steps_s + added_s + launch_s, rel=1e-5)
    assert ring.reduce_scatter_s(4 * chunk, GPU, units=80, near_memory=True) == pytest.approx(steps_s)


def test_few_units_slow_a_collective():
    """One unit moves 2,048 x 4 bytes in 486 ns: 8 of them are slower than the link, copying or adding."""
    ring, chunk = Ring(8, LINK, LATENCY_S), 2**24
    unit = 2048 * 4 / 486e-9
    slow = 5000 / 1.4e9 + 7 * LATENCY_S + (2 + 7 * 3) * chunk / (8 * unit)
    assert ring.reduce_scatter_s(8 * chunk, GPU, units=8) == pytest.approx(slow, rel=1e-5)


def test_pieces_of_rows_cost_what_opening_rows_costs():
    """64 bytes are 2 accesses of 1.25 cycles, and a row opens each 4; 256 bytes are 8, which take longer than that.

    With few banks these bound it: 8 of them open a row each 47 / 8 cycles.
    """
    constants = constants_of(GPU)
    assert constants.piece_cost(64) == pytest.approx(4 / 2 / 1.25)
    assert constants.piece_cost(256) == 1
    assert constants.turn_cost == pytest.approx(4 / 1.25)
    assert constants.model_copy(update={"banks": 8}).turn_cost == pytest.approx(47 / 8 / 1.25)
    assert constants.update_cost == pytest.approx(7 / 5)


def test_operands_along_k_take_longer_to_read_than_along_n():
    turned, plain = (
        stage(Gemm(8192, 4256, 1064, transposed=transposed), GPU, isolated_s=1e-3) for transposed in (True, False)
    )
    assert turned.read_bytes.sum() == plain.read_bytes.sum()
    assert turned.read_s.sum() > plain.read_s.sum()
    assert turned.isolated_s > plain.isolated_s


def test_a_cached_output_is_written_sooner_than_one_that_bypasses_the_cache():
    """Where the cache holds all of it, neither reads anything twice, and only the writes differ."""
    layer = sublayer(device=replace(GPU, l2_bytes=1e9))
    alone, tracked = (CONFIGURATIONS[name](layer) for name in ("sequential", "t3-mca"))
    assert tracked.traffic.gemm_reads == pytest.approx(alone.traffic.gemm_reads)
    assert tracked.gemm_s > 1.05 * alone.gemm_s
    small = [CONFIGURATIONS[name](sublayer()).traffic.gemm_reads for name in ("t3-mca", "sequential")]
    assert small[0] < small[1]


def test_a_full_queue_costs_the_gemm_more_than_a_short_one():
    times = [CONFIGURATIONS["t3"](sublayer(policy=replace(COMPUTE_FIRST, name=f"{entries}", threshold=entries))).gemm_s
             for entries in (5, 10, 30, 64)]  # fmt: skip
    assert times == sorted(times)
    assert times[-1] > 1.005 * times[0]


def test_cache_keeps_what_fits_and_loses_what_does_not():
    cache = Cache(16e6, 16)
    assert missed(4e6, cache) < 1e-3
    assert missed(64e6, cache) > 0.999
    shares = [missed(size, cache) for size in np.linspace(0, 64e6, 50)]
    assert shares == sorted(shares)


def test_reads_of_a_product_that_fits_are_each_operand_once():
    found = read_bytes(Gemm(4096, 512, 512), sweep_rows=640.0, cache=Cache(1e9, 16), bypassed=False)
    assert found == pytest.approx((4096 * 512 * 2, 512 * 512 * 2), rel=1e-6)


def test_going_round_the_cache_never_reads_more():
    for depth in (192, 768, 2128):
        sizes = [
            sum(read_bytes(Gemm(8192, 4256, depth), sweep_rows=600.0, cache=Cache(16e6, 24), bypassed=way))
            for way in (True, False)
        ]
        assert sizes == sorted(sizes)


def test_regions_cover_chunks_and_end_where_stages_do():
    staged = stage(Gemm(8192, 4256, 1064), GPU, isolated_s=1e-3)
    size = 8192 * 4256 * 2
    regions = regions_of(staged, size, 16)
    assert sum(region.size_bytes for region in regions) == pytest.approx(size)
    for place in range(16):
        mine = [region for region in regions if region.place == place]
        assert mine[0].begin == pytest.approx(0.0, abs=1.0)
        assert mine[-1].end == pytest.approx(size / 16)
    assert [region.stage for region in regions] == sorted(region.stage for region in regions)


def test_finer_triggers_cut_finer_and_send_the_same():
    coarse, fine = (CONFIGURATIONS["t3-mca"](sublayer(trigger_bytes=size)) for size in (1e9, 2.5e5))
    assert fine.traffic.total == pytest.approx(coarse.traffic.total)
    assert fine.fused_s < coarse.fused_s < 1.2 * fine.fused_s


def test_policies_rank_as_published():
    """Compute-first beats round-robin where a GEMM reads much, and both beat holding everything back (Sec. 4.5); queues
    that serve open rows first lose less by taking turns."""
    layer = sublayer(16384, 3072, 1536, 8)
    times = [
        CONFIGURATIONS["t3"](replace(layer, policy=each)).fused_s
        for each in (COMPUTE_FIRST, FIRST_READY, ROUND_ROBIN, DEDICATED)
    ]
    assert times == sorted(times)


def test_what_is_sent_is_read_as_soon_as_it_is_complete_however_slow_the_link():
    fast, slow = (
        CONFIGURATIONS["t3-mca"](replace(sublayer(), ring=Ring(16, rate, 0.0))).overlapped for rate in (1e12, 1e9)
    )
    first = [min(each.start_s for each in run.served if each.kind == "scatter_writes") for run in (fast, slow)]
    assert first[0] < first[1]
    # On the slow link the first updates arrive late; what they complete is read at the memory's rate, not the link's.
    reads = [each for each in slow.served if each.kind == "scatter_reads"]
    rate = sum(each.size_bytes for each in reads) / sum(each.end_s - each.start_s for each in reads)
    assert rate > 100 * 1e9


def test_thresholds_follow_memory_intensity():
    assert [threshold_of(share) for share in (0.9, 0.3, 0.2, 0.01)] == [5, 10, 30, None]


def test_direct_reduce_scatter_leaves_no_traffic_of_its_own():
    """Sec. 7.1: the collective is done by the GEMM's stores; its reads vanish."""
    layer = sublayer(ranks=4)
    before, after = DIRECT["direct"](layer), DIRECT["t3-direct"](layer)
    assert after.traffic.scatter_reads == 0
    assert after.traffic.scatter_writes == pytest.approx(3 / 4 * layer.gemm.output_bytes)
    assert after.traffic.gemm_writes == pytest.approx(layer.gemm.output_bytes / 4)
    assert after.total_s < before.total_s


def test_a_tracked_all_to_all_is_bound_by_its_product_or_its_links():
    layer = sublayer(ranks=8)
    before, after = DIRECT["all-to-all"](layer), DIRECT["t3-all-to-all"](layer)
    assert before.all_gather_s == after.all_gather_s == 0
    assert max(after.gemm_s, layer.gemm.output_bytes / 8 / LINK) <= after.fused_s < before.fused_s


@settings(max_examples=30, deadline=None)
@given(layer=sublayers)
def test_laws_of_a_tracked_all_gather(layer):
    """It moves what one after the other moves, takes no less than either, and no more than both, disturbed or not."""
    apart, found = (GATHER[name](layer) for name in ("gather", "t3-gather"))
    for name in ("gemm_reads", "gemm_writes", "gather_reads", "gather_writes"):
        assert getattr(found.traffic, name) == pytest.approx(getattr(apart.traffic, name), rel=1e-6)
    size, ring = layer.gemm.rows * layer.gemm.depth * 2, layer.ring
    carried_s = (ring.ranks - 1) * (size / ring.ranks / ring.link_bytes_per_s)
    assert found.total_s >= max(apart.gemm_s, carried_s) * (1 - 1e-9)
    served_s = apart.traffic.total * 10 / memory_rate(GPU)  # each access finds another row open, behind a full queue
    assert found.total_s <= apart.gemm_s + carried_s + ring.ranks * ring.latency_s + served_s


def test_a_gemm_starts_on_its_own_rows_and_waits_for_the_last():
    layer = sublayer()
    slow = replace(layer, ring=Ring(16, 1e9, 0.0))
    found = GATHER["t3-gather"](slow).overlapped
    arrives_s = 15 / 16 * 8192 * 1064 * 2 / 1e9
    first, *_, last = found.stage_ends_s
    assert first < arrives_s / 4
    assert last > arrives_s


def test_what_follows_near_the_memory_is_a_ranks_share():
    """A residual: one array read and added by updates of 1.4 reads, on a 16th, instead of three arrays on all."""
    found = outcomes_of(TrackSettings(following=1), sublayer(following=1))
    size = 8192 * 4256 * 2
    near, apart = found["t3-mca-following"], found["t3-mca"]
    assert near.following_s == pytest.approx(size / 16 * 2.4 / memory_rate(GPU))
    assert apart.following_s > 3 * size / memory_rate(GPU)
    assert near.total_s - near.following_s == pytest.approx(apart.total_s - apart.following_s)
    assert apart.traffic.total - near.traffic.total == pytest.approx((3 - 2 / 16) * size)
    assert "t3-mca-following" not in outcomes_of(TrackSettings(), sublayer())


def test_split_depth_writes_every_partial_tile():
    plain, split = (
        stage(Gemm(1024, 1024, 8192, split_depth=parts), GPU, isolated_s=1e-3, bypassed=True) for parts in (1, 4)
    )
    assert split.write_bytes.sum() == pytest.approx(4 * plain.write_bytes.sum())
    assert split.output_bytes.sum() == pytest.approx(plain.output_bytes.sum())
    assert split.tiles.sum() == 4 * plain.tiles.sum()


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="1 rank has none; give tensor_parallel of 2 or more"):
        Ring(1, LINK, LATENCY_S)
    with pytest.raises(ConfigError, match=r"unknown memory policy 'round_robin'; did you mean 'round-robin'\?"):
        policy_named("round_robin")
    with pytest.raises(ConfigError, match="'a100-80g' does not say how it runs GEMMs in stages"):
        constants_of(load_device("a100-80g"))
    with pytest.raises(ConfigError, match="90 of 80 compute units for the collective leave -10"):
        CONFIGURATIONS["split"](sublayer(split_units=90))
    small = replace(GPU, stages=constants_of(GPU).model_copy(update={"tracker_entries": 1000}))
    with pytest.raises(ConfigError, match=r"follows 1000 wavefronts, and a stage has 1280 .* 280 too many"):
        CONFIGURATIONS["t3"](replace(sublayer(), device=small))
    with pytest.raises(ConfigError, match="7 B are less than the 4096 B that a wavefront writes"):
        sublayer_of(TrackSettings(trigger="7B"), GPU, load_topology("t3-ring-8"))


def test_sublayers_gain_in_the_published_order():
    """T3, Sec. 6.1.1: ideal overlap gains most in FC-1 of T-NLG at TP 16, least in OP of Mega-GPT-2 at TP 16."""
    rows = t3.sweep(t3.MODELS, configurations=("sequential", "ideal"))
    ranked = sorted(rows, key=lambda row: row.speedup("ideal"))
    assert (ranked[0].name, ranked[0].model, ranked[0].degree) == ("OP", "Mega-GPT-2", 16)
    assert {(row.name, row.model, row.degree) for row in ranked[-2:]} == {(n, "T-NLG", 16) for n in ("FC-1", "FC-2")}


def test_operators_near_the_cache_reach_the_ideal_and_those_that_stream_do_not():
    """Sec. 6.1.2: OP is close to the ideal under round-robin; FC layers that read much are more than 15% slower."""
    rows = {(r.model, r.degree, r.name): r for r in t3.sweep(t3.MODELS, configurations=("sequential", "ideal", "t3"))}
    small, large = rows["Mega-GPT-2", 8, "OP"], rows["T-NLG", 8, "FC-2"]
    assert small.speedup("t3") > 0.98 * small.speedup("ideal")
    assert large.speedup("t3") < 0.85 * large.speedup("ideal")
