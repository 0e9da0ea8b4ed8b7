"""Which model answered: what a result was computed by and from, for every title and every JSON; and what it left out.

Knows no numbers of the result.
"""

import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import scaleout
from scaleout.cluster.device.host import unknown_costs
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.nodes import of_device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.keys import in_words
from scaleout.config.library import names
from scaleout.config.units import counted, format_bytes
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions
from scaleout.workloads.config.family import ModelFamily

if TYPE_CHECKING:
    from scaleout.study.job import Job

_NETWORKS = {"alpha_beta": "alpha-beta network", "link": "flows over links", "recorded": "collectives as recorded"}

_OF_TRACE = (
    "kernels take what the trace says, no host launches them and no clock changes them; a workload's run has both, but "
    "with --host none --clocks unthrottled"
)
_NO_HOST = "what its host spends on a call (host_launch)"
_NO_POWER = "what it draws (power)"


@dataclass(frozen=True)
class Provenance:
    """What answered, and what it was given."""

    version: str
    network: str
    library: str | None  # whose protocols collectives have
    contention: str | None  # of kernels and collectives, by what; None for none
    host: str
    clocks: str
    inputs: dict[str, Any]  # workload, topology, device, changes and options that are not the default
    notes: tuple[str, ...] = ()  # what is not modelled here, although asked for or usual

    @property
    def title(self) -> str:
        """What answered and what was changed, in a line."""
        return ", ".join([self.models, *self.inputs.get("changes", ())])

    @property
    def models(self) -> str:
        """What answered, in a line."""
        words = [_NETWORKS[self.network]]
        if self.network == "recorded":  # which has all costs of protocols and contention
            words += ["contention as recorded"]
        else:
            words += [f"protocols of {self.library}" if self.library else "no protocol costs"]
            if "device" in self.inputs:
                words += ["contention" if self.contention else "no contention"]
        if "device" in self.inputs:
            words += ["no host" if self.host == "none" else f"{self.host} host", f"{self.clocks} clocks"]
        return ", ".join([*words, f"scaleout {self.version}"])

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "notes": list(self.notes)}


def provenance_of(job: "Job") -> Provenance:
    """Say by what and from what a job is simulated."""
    work = job.work.name
    found = provenance(job.network, job.device, job.options, workload=work, contends=job.contention is not None)
    notes = [_OF_TRACE] if job.traced else _unknown(job.device, job.options)
    return replace(found, notes=(*_left_out(job.work), *found.notes, *notes))


def _left_out(work: ModelFamily | Program) -> list[str]:
    """Say which parts of its model a workload does not have, and which keys of training a mode of serving left out."""
    if isinstance(work, Program):
        return []
    model, mode = work.left_out, getattr(work, "mode", "")
    of_training = in_words(type(work), work.left_by_mode)
    idle = [key for key in work.without_effect if key not in ("recompute", "attention")]
    notes = {
        f"workload {work.name} leaves out {model} of its model: no parameter nor kernel of it is counted": model,
        f"workload {work.name} all-reduces each gradient by itself (gradient_bucket "
        f"{format_bytes(work.gradient_bucket)}); PyTorch's DDP does so in buckets: --set gradient_bucket=25MiB": (
            reduces_one_by_one(work)
        ),
        "recompute selective changes nothing: only attention unfused keeps scores that backward could recompute; "
        "--set recompute=full keeps less of every layer": "recompute" in work.without_effect,
        "attention unfused changes nothing: parts of a sequence over context_parallel ranks are attended to by flash "
        "kernels": "attention" in work.without_effect,
        f"{', '.join(idle)}: no effect, as keys of zero 3; this job has zero {getattr(work, 'zero', 0)}": idle,
        f"mode {mode} leaves out how training runs: {of_training}; what is given beside mode stays": of_training,
    }
    return [note for note, holds in notes.items() if holds]


_LEAST_BUCKET = 1000.0
"""Bytes; the gradient of a bias of 500 numbers is as large."""


def reduces_one_by_one(work: ModelFamily) -> bool:
    """Whether gradients of a training step, which are not sharded with parameters, lie in no buckets."""
    trains = getattr(work, "mode", "training") == "training" and getattr(work, "zero", 0) < 3
    return trains and work.data_parallel > 1 and work.gradient_bucket < _LEAST_BUCKET


def _unknown(device: Device | str, options: SimulationOptions) -> list[str]:
    """Say what a step meets on a device, and the device's file does not have; nothing where it is left out."""
    if isinstance(device, str) or not options.contention:
        return []
    host = bool(unknown_costs(device)) and options.host == "none"
    power = device.power is None and options.clocks == "unthrottled"
    lacks = [words for words, lacking in ((_NO_HOST, host), (_NO_POWER, power)) if lacking]
    return [f"the file of device {device.name} does not say {' or '.join(lacks)}: left out"] if lacks else []


def provenance(
    topology: Topology,
    device: Device | str | None,
    options: SimulationOptions,
    *,
    workload: str = "",
    contends: bool = False,
) -> Provenance:
    """Say by what and from what an answer is computed; `contends` whether something is slowed down by others."""
    library = topology.library.name if topology.library is not None else None
    plain = SimulationOptions()
    given = {name: value for name, value in vars(options).items() if value != getattr(plain, name)}
    inputs = {
        **({"workload": workload} if workload else {}),
        "topology": topology.name,
        **({} if device is None else {"device": device if isinstance(device, str) else device.name}),
        **({"changes": list(topology.altered)} if topology.altered else {}),
        **({"options": given} if given else {}),
    }
    used = library if contends else None
    return Provenance(
        scaleout.__version__,
        options.network,
        library,
        used,
        options.host,
        options.clocks,
        inputs,
        tuple(_notes(topology, device, options, contends=contends)),
    )


def devices_of(topology: Topology, device: Device | str) -> list[str]:
    """Return whose network it is, by its name or its library's; nothing if it is the device's, or that is not known.

    Of devices that ship with the package. Names count by their first word: h100-p5 is an h100.
    """
    name, shipped = device if isinstance(device, str) else device.name, names("device")
    if name not in shipped:
        return []
    kinds = {each.partition("-")[0] for each in shipped}
    others = [word.upper() for word in topology.name.split("-") if word in kinds]
    if not others and topology.library is not None:
        others = list(topology.library.devices)
    return [] if any(re.search(rf"\b{each}\b", name, re.IGNORECASE) for each in others) else others


def told_network(topology: Topology, device: str, ranks: int) -> str:
    """Say whose network it is, where it is that of other devices, and which is the device's own; else nothing."""
    others = devices_of(topology, device)
    if not others:
        return ""
    own = of_device(device, ranks)
    hint = "" if own is None else f"; its own: {own.options}"
    return f"of {' or '.join(others)}, not of {device}{hint}"


def of_another(topology: Topology, device: Device | str) -> list[str]:
    """Say that a network is that of other devices."""
    others = devices_of(topology, device)
    if not others:
        return []
    whose = "its links are theirs"
    if topology.library is not None:
        whose = f"its links and the times of {topology.library.name} are theirs"
    return [
        f"topology {topology.name} is a network of {' or '.join(others)}: {whose}, and kernels those of device "
        f"{device if isinstance(device, str) else device.name} (--device gives another)"
    ]


def _of_cards(topology: Topology, network: str) -> str:
    """Say what is done without the cards that are down."""
    inside, between = topology.shape[0], topology.dimensions[-1].link or len(topology.dimensions) - 1
    most = max(Counter(rank // inside for rank in topology.cards_down).values())
    left = f"{inside - most} of {counted(inside, 'card')}"
    shared = "share the card of another, and both have half of it; groups of whole nodes"
    if network == "link":
        return (
            f"ranks without a card {shared} too. NCCL that starts without {counted(most, 'card')} drops as many "
            f"channels on every node, so that these have {left}: --bandwidth {between}={1 - most / inside:.4g}x"
        )
    return f"ranks without a card {shared} have {left} on every node, as NCCL that starts so drops channels everywhere"


def _notes(topology: Topology, device: Device | str | None, options: SimulationOptions, *, contends: bool) -> list[str]:
    """Say what is left out."""
    notes = []
    if topology.library is None:
        kind = "messages over links" if options.network == "link" else "alpha-beta"
        reason = f" ({topology.library_reason})" if topology.library_reason else ""
        notes.append(
            f"topology {topology.name} names no communication library{reason}: its collectives are {kind}, without "
            f"the costs of protocols, and may be faster than with one"
        )
    if topology.cards_down:
        notes.append(_of_cards(topology, options.network))
    if device is None:
        return notes
    notes += of_another(topology, device)
    if isinstance(device, str):
        notes.append(f"no file of device {device}: kernels and collectives do not slow each other down")
    elif options.contention and not contends:
        why = "no communication library says what they take" if topology.library is None else "its library does not say"
        notes.append(f"kernels and collectives that run at the same time do not slow each other down: {why}")
    if options.clocks != "unthrottled" and isinstance(device, Device) and device.power is None:
        notes.append(f"--clocks {options.clocks}: the file of device {device.name} has no power; its clocks stay full")
    return notes
