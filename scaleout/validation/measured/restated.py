"""What sources say of published runs where their rows, written before keys for it existed, say otherwise.

A row's `source` picks what is restated; the row's file is left as it is, and the comparison's `note` says what was
done. All of it is the framework's code of that time or the source's own measurement; nothing is fitted to a step.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.communication_library import load_library
from scaleout.cluster.topology.what_if import NetworkChanges, change_network
from scaleout.config.library import folder
from scaleout.validation.measured.rows import Row


@dataclass(frozen=True)
class Restated:
    """Keys of a described run that replace those of rows whose source has `source` in it, and why.

    An empty `source` is in each, but not in rows that name none.
    """

    source: str
    why: str
    changes: Mapping[str, Any] = field(default_factory=dict)  # keys of the workload
    keys: Mapping[str, str] = field(default_factory=dict)  # of the row
    network: NetworkChanges = field(default_factory=NetworkChanges)
    where: Mapping[str, Any] = field(default_factory=dict)  # keys that the row's workload has
    device: str = ""  # of rows that stand for it with one that was there when they were written
    stand_in: str = ""  # that one
    library: str = ""  # shipped, for one of its name that the row's topology has from before it said more

    def of(self, row: Row) -> bool:
        """Whether it is of a row."""
        if "source" not in row.values:
            return False
        workload = row.values.get("workload")
        has = workload if isinstance(workload, Mapping) else {}
        return self.source in str(row.values["source"]) and self.where.items() <= has.items()


_SC21 = (
    "Megatron-LM at 3d718bfc31 (August 2021), examples/sc21/CONFIG.sh: fp16 without accumulation in fp32; neither its "
    "fusion nor asynchronous all-reduces before 83b1e42f30 (February 2022)",
    {"gradient_dtype": None, "fused_accumulation": False},
    {"schedule": "baseline"},
)

_GRAPHS = "so the host issues call by call"

RESTATED = (
    Restated(
        "",
        "the row's library is that of the first release, which did not say what collectives take from kernels",
        library="nccl/b200.yaml",
    ),
    Restated("", "published steps are a mean of many, one after the other", keys={"clocks": "sustained"}),
    Restated(
        "NVIDIA/dgxc-benchmarking at 8f5cbb3",
        f"no recipe of that release has CUDA graphs, {_GRAPHS}",
        keys={"host": "eager"},
    ),
    Restated(
        "NVIDIA/dgxc-benchmarking at 8f5cbb3",
        "grok1/configure.sh has NVTE_FUSED_ATTN=0, so that TransformerEngine takes FlashAttention 2, and "
        "ub_tp_comm_overlap=true; grok1_314b.yaml no cross_entropy_loss_fusion, which is off in Megatron-LM "
        "core_r0.10.0 (NeMo v2.1.0, Dockerfile.ci), whose experts lie over tensor and expert ranks by themselves "
        "(core/parallel_state.py) and whose dispatcher chooses rows by masks (core/transformer/moe/moe_utils.py)",
        changes={
            "attention": "flash2",
            "loss": "vocabulary_parallel",
            "expert_tensor_parallel": 4,
            "plain_routing": "by_mask",
        },
        keys={"schedule": "overlap+async-tp"},
        where={"kind": "moe"},
    ),
    Restated(
        "NVIDIA/dgxc-benchmarking at 8f5cbb3",
        "nemotron/configure.sh has NVTE_FUSED_ATTN=0 for 340B, so that TransformerEngine takes FlashAttention 2",
        changes={"attention": "flash2"},
        where={"hidden": 18432},
    ),
    Restated(
        "NVIDIA/dgxc-benchmarking at 8f5cbb3",
        "nemo_megatron/gpt3_175b_hydra.yaml has no cross_entropy_loss_fusion, which is off in Megatron-LM core_r0.10.0",
        changes={"loss": "vocabulary_parallel"},
        where={"hidden": 12288},
    ),
    Restated(
        "arXiv:2504.14960",
        f"CUDA graphs are off by default (Megatron Core, training/arguments.py), {_GRAPHS}",
        keys={"host": "eager"},
    ),
    Restated(
        "bigscience-workshop/bigscience",
        "a NIC of 100 Gb/s gives NCCL 40.5 Gb/s, of which two GPUs share one: experiments/bandwidth at 9e64ede, "
        "all_reduce_bench-a100-n4.txt, by its log both channels of a node through one NIC; the protocol reaches 0.94",
        network=NetworkChanges.of(bandwidth={"infiniband": "21.5 Gb/s"}),
    ),
    Restated(
        "bigscience-workshop/bigscience",
        "CUDA_LAUNCH_BLOCKING=1, without which models of more than 100B hang on 40 nodes and more: "
        "chronicles-prequel.md, dealing with JZ hanging",
        keys={"host": "blocking"},
    ),
    Restated(
        "bigscience-workshop/bigscience",
        "DeepSpeed's ZeRO-1 all-reduces gradients: from 6ae756c03 (July 2021) to af033831f (January 2024) without "
        "contiguous gradients, runtime/engine.py, so in buckets of the fallback of runtime/zero/stage_1_and_2.py; the "
        "BF16 optimizer by runtime/pipe/engine.py, _bf16_reduce_grads",
        changes={"all_reduced_gradients": True},
        where={"zero": 1},
    ),
    Restated(
        "bigscience-workshop/bigscience",
        "DeepSpeed's BF16 optimizer accumulates in fp32, by kernels of its own: chronicles-prequel.md, rebalancing",
        changes={"gradient_dtype": "fp32", "fused_accumulation": False},
        where={"dtype": "bf16"},
    ),
    Restated(
        "bigscience-workshop/bigscience",
        "CUDA 11.5 (train/tr11-176B-ml/README.md): with 11.6 torch.bmm of 384 x 1024 x 1024 x 140 ran at 12.2 TFLOP/s "
        "in bf16, with 11.7 at 85.6 (pytorch/pytorch, issue 83272); that fp16, 53.9 there, was as slow for packed "
        "queries, keys and values is inferred from these plans",
        changes={"unaligned_heads": "vector_units"},
        where={"attention": "unfused"},
    ),
    Restated(
        "bigscience-workshop/bigscience",
        "DeepSpeed's pipeline has one message at a time between passes, which wait for it: runtime/pipe/schedule.py, "
        "TrainSchedule, and p2p.py, v0.5.3 to v0.6.5",
        changes={"messages": "in_turn", "overlap_sends": False},
    ),
    Restated(
        "InternLM/InternEvo",
        "the table is of 8 July 2023 (InternLM/InternLM, c18bec9), of Flash-Attention 1.0.5 (doc/en/install.md); the "
        "second came on 17 July. Its version in Triton stands for the first",
        changes={"attention": "triton"},
    ),
    Restated(
        "NVIDIA/dgxc-benchmarking at 60d6fd3 (release 25.05), GB200 tables",
        "B200 stood for GB200, whose GEMMs were measured since (traces/gb200)",
        device="gb200",
        stand_in="b200",
    ),
    Restated("arXiv:2104.04473, Table 1", *_SC21),
    Restated("arXiv:2104.04473, Table 2, PTD-P", *_SC21),
    Restated(
        "arXiv:2104.04473, Table 2, ZeRO-3",
        "DeepSpeed of early 2021: a gather a parameter, through lists; see `scaleout list frameworks`",
        changes={"framework": "deepspeed-2021", "gradient_dtype": None, "fused_accumulation": False},
        keys={"host": "eager"},
    ),
    Restated(
        "arXiv:2201.11990",
        "16-bit bfloat (section 2.3) and 20 bytes a parameter, gradients in 2 + 4 (section 2.1); Megatron-LM had "
        "neither fused accumulation nor asynchronous all-reduces before 83b1e42f30 (February 2022); messages of "
        "DeepSpeed's pipeline as BLOOM's",
        changes={
            "dtype": "bf16",
            "gradient_dtype": "fp32",
            "fused_accumulation": False,
            "messages": "in_turn",
            "overlap_sends": False,
        },
        keys={"schedule": "baseline"},
    ),
    Restated(
        "arXiv:2204.02311",
        "section 2 has parallel layers: attention and feed-forward network read one norm of a layer's input",
        changes={"halves": "parallel_of_one_norm"},
    ),
    Restated(
        "arXiv:2204.06745",
        "section 2.1.2 computes attention and feed-forward network in parallel, each on a norm of its own",
        changes={"halves": "parallel"},
    ),
)
"""In the order in which they are applied; a later one wins."""


def _name(device: str) -> str:
    return load_device(device).name


def _stand_ins(each: Restated, machine: Machine) -> tuple[Machine, dict[str, str]]:
    """Return a machine with the device and the library for which others stand, and what was taken."""
    taken = {}
    if each.device and machine.device.name == _name(each.stand_in):
        machine, taken["device"] = replace(machine, device=load_device(each.device)), each.device
    own = machine.topology.library
    if each.library and own is not None and own.resource_use is None:
        shipped = load_library(folder("topology") / each.library)
        if own.name == shipped.name:
            topology = replace(machine.topology, library=shipped)
            machine, taken["library"] = replace(machine, topology=topology), each.library
    return machine, taken


def restate(row: Row, machine: Machine) -> tuple[Row, Machine, str]:
    """Return a row and its machine as its source says they are, and what was restated, if anything."""
    notes = []
    for each in RESTATED:
        if each.of(row):
            changes = {**row.values.get("changes", {}), **each.changes}
            row = replace(row, values={**row.values, **each.keys, "changes": changes})
            machine = replace(machine, topology=change_network(machine.topology, each.network))
            machine, stands = _stand_ins(each, machine)
            words = [f"{key} {value}" for keys in (each.changes, each.keys, stands) for key, value in keys.items()]
            if not words and not each.network.words:
                continue
            notes.append(f"{', '.join((*words, *each.network.words))}: {each.why}")
    return row, machine, "; ".join(notes)
