"""Recordings of two ranks, changed as JSON and as bytes, plain and gzip."""

import gzip
import io
import tarfile
from functools import cache
from pathlib import Path

from host_builder import Host, identity
from judge import Case
from kineto_builder import Rank
from mutations import Grammar, as_json, file_of, other_bytes, tree

from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.save import save_program
from scaleout.interop.pytorch.load import load_recording
from scaleout.simulation.options import SimulationOptions
from scaleout.study.comparison import compare_program
from scaleout.study.edits import edited
from scaleout.study.recording import described, replayed


def _seed(rank, *, old_names=False):
    """A step of every kind of event: kernels of two streams, waits told and not, a copy, a collective, a message."""
    made = Rank(rank, 2, offset_us=5000.0 * rank, old_names=old_names)
    made.step(3, 0, 400).operator("aten::mm", 1, 20, dims=[[64, 32], [32, 16]], dtypes=["c10::BFloat16"] * 2)
    made.operator("autograd::engine::evaluate_function: MmBackward0", 100, 60)
    made.operator("aten::add", 110, 10, dims=[[64, 16], [64, 16]])
    made.operator("Optimizer.step#SGD.step", 250, 100).operator(
        "torch::autograd::AccumulateGrad", 170, 5, dims=[[32, 16]]
    )
    made.kernel(10, 50, launch=2, stream=7)
    made.call("cudaEventRecord", 5)
    made.call("cudaStreamWaitEvent", 6)
    made.collective(60, 40, launch=8, stream=20)
    told = made.call("cudaEventRecord", 20)
    waits = made.call("cudaStreamWaitEvent", 21)
    made.event("cuda_sync", "Stream Wait Event", 21, 1, correlation=waits, stream=7, wait_on_stream=20,
               wait_on_cuda_event_record_corr_id=told)  # fmt: skip
    made.kernel(112, 30, launch=111, stream=7, name="add")
    made.collective(150, 30, launch=149, stream=20, kind=("send", "recv")[rank], name="ncclDevKernel_SendRecv",
                    **{("Dst Rank", "Src Rank")[rank]: 1 - rank})  # fmt: skip
    made.copy(200, 10, launch=199, returns=211)
    made.call("cudaDeviceSynchronize", 212, 5)
    made.kernel(260, 30, launch=255, stream=7, name="sgd")
    content = made.content()
    content["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]
    return content


@cache
def _seeds():
    return [_seed(0), _seed(1)]


@cache
def _grammar():
    return Grammar([tree(each) for each in (*_seeds(), _seed(0, old_names=True), _seed(0)["traceEvents"])])


def recorded_layers(folder):
    """Import a job of two ranks that repeats layers, forward and backward, with exchanges and reductions."""
    for number in range(2):
        rank, at = Rank(number, 2).step(3, 0, 1000), 10
        for layer in range(6):
            rank.operator("aten::mm", at, 8, dims=[[64, 32], [32, 16]], dtypes=["c10::BFloat16"] * 2)
            rank.kernel(at + 2, 5, launch=at + 1)
            rank.collective(at + 10, 5, launch=at + 9, stream=7, kind="all_to_all" if layer % 3 else "allreduce")
            at += 20
        for _ in range(6):
            rank.operator("autograd::engine::evaluate_function: MmBackward0", at, 15)
            rank.operator("aten::mm", at + 1, 8, dims=[[32, 64], [64, 16]], dtypes=["c10::BFloat16"] * 2)
            rank.kernel(at + 3, 5, launch=at + 2)
            rank.collective(at + 10, 5, launch=at + 9, stream=7)
            at += 20
        rank.operator("torch::autograd::AccumulateGrad", at, 5, dims=[[32, 16]])
        rank.operator("Optimizer.step#SGD.step", at + 6, 20).kernel(at + 8, 10, launch=at + 7, name="sgd")
        rank.write(folder, name="layers")
    return load_recording((Path(folder, "layers"),))


def _hosts():
    """Return host traces of a step, of either schema."""
    found = []
    for schema in ("1.1.1-chakra.0.0.4", "1.0.1"):
        host = Host(0, schema=schema, world_size=2)
        host.operator("aten::mm", dims=[[64, 32], [32, 16]], dtypes=["c10::BFloat16"] * 2, outputs=[(9, [64, 16])])
        types = ["Tensor(float)", "Int", "Tuple[String,String]", "Int", "String"]
        host.operator("record_param_comms", dims=[[1000], [], [], [], []], types=types,
                      values=[identity(9), 5, ["0", "default"], 0, "allreduce"], outputs=[(9, [1000])])  # fmt: skip
        add = "aten::add.Tensor(Tensor self, Tensor other) -> Tensor"
        host.operator("aten::add", dims=[[64, 16], [64, 16]], outputs=[(10, [64, 16])], op_schema=add)
        found.append({**host.facts, "nodes": host.nodes})
    return found


@cache
def _host_grammar():
    return Grammar([tree(each) for each in _hosts()])


EDITS = ("batch=2x", "sequence=4->1", "layers=2x", "accumulate=2x", "bucket=1MB", "chunks=2", "recompute=full",
         "recompute=none", "microbatches=2->4", "data=2x", "tensor=2->4", "expert=0.5x", "layers=6->3",
         "batch=1->999999999999999999", "accumulate=1000000x", "bucket=5")  # fmt: skip


def archived(members, *, mode="w:gz", links=()):
    """An archive of files by name, before them links and devices: name, kind and where a link leads."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as archive:
        for name, kind, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def chained(count):
    """An archive that begins with as many headers of a long name, each of the next, where there is one of a file."""
    longer = tarfile.TarInfo("x")
    longer.type, longer.size = tarfile.GNUTYPE_LONGNAME, 7
    return (longer.tobuf(tarfile.GNU_FORMAT) + b"a.json\0".ljust(512, b"\0")) * count


_LINKS = [("rank0.json", tarfile.SYMTYPE, "/etc/passwd"), ("job.rank1.json", tarfile.LNKTYPE, "../../x"),
          ("fifo.json", tarfile.FIFOTYPE, ""), ("zero.json", tarfile.CHRTYPE, ""),
          ("..", tarfile.DIRTYPE, "")]  # fmt: skip
_FOLDERS = ("", "", "", "/", "/etc/", "../", "../../x/", "./", "a/b/", "\x1b[31m/", "C:\\")


def recordings(random):
    """Both ranks, of which one is changed, or one alone."""
    contents = [as_json(tree(each)).encode() for each in _seeds()]
    contents[random.randrange(2)] = file_of(random, _grammar(), as_json)
    files = {}
    for rank in random.choice(((0, 1),) * 8 + ((0,), (1,))):
        zipped = random.random() < 0.3
        content = gzip.compress(contents[rank], mtime=0) if zipped else contents[rank]
        if zipped and random.random() < 0.2:
            content = other_bytes(random, content)
        files[f"job.rank{rank}.kineto.json{'.gz' if zipped else ''}"] = content
    if random.random() < 0.25:
        host = file_of(random, _host_grammar(), as_json)
        files = {"job.rank0.host.json": host} | (files if random.random() < 0.5 else {})
    if random.random() < 0.1:
        members = {random.choice(_FOLDERS) + name: content for name, content in files.items()}
        links = random.sample(_LINKS, random.choice((0, 0, 1, 2)))
        files = {"job.tar.gz": archived(members, links=links, mode=random.choice(("w:gz", "w:gz", "w:", "w:xz")))}
        if random.random() < 0.5:
            files["job.tar.gz"] = other_bytes(random, files["job.tar.gz"])
    edits = random.choice(EDITS) if random.random() < 0.4 else ""
    partial = ("--allow-partial",) if random.random() < 0.3 else ()
    files["options"] = " ".join((*([edits] if edits else []), *partial)).encode()
    return Case("recording", files)


def read_recording(case):
    """Import, save, load, edit and replay: all that a recording goes through."""
    options = case.files["options"].decode().split()
    path = Path("job.tar.gz" if "job.tar.gz" in case.files else "job")
    program, facts, report = load_recording((path,), allow_partial="--allow-partial" in options)
    save_program(program, Path("traces"), name=report.name, facts=facts)
    loaded = load_program("traces")
    changes = dict(each.split("=", 1) for each in options if "=" in each)
    changed = edited(described(loaded.program, loaded.facts, "as recorded"), changes).program
    if changed.num_ranks <= 64:
        topology, simulation = replayed(changed, SimulationOptions())
        compare_program(changed, topology=topology, device="as recorded", schedules=("recorded",), options=simulation)
