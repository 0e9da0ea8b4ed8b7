"""Nodes of many files, read at once: what is read of each one by one, in whatever form; and the same faults."""

import gzip
import math
from dataclasses import replace

import chakra_messages as chakra
import numpy as np
import pytest
from chakra_messages import read_messages
from hypothesis import given
from hypothesis import strategies as st
from test_chakra import HAND_METADATA, HAND_NODE, NODES, assert_reads_attributes, bits

from scaleout.errors import ScaleoutError, TraceError
from scaleout.interop.chakra import fields, nodes, texts, vocabulary
from scaleout.interop.chakra.framing import Content, frames, read_content
from scaleout.interop.chakra.nodes import NodeReader
from scaleout.interop.chakra.rows import LABELS, READ, Row, read_row
from scaleout.interop.chakra.trace_set import declared_groups
from scaleout.interop.chakra.wire import FAULTS, Node
from scaleout.program.graph import NONE, NodeKind
from scaleout.program.operations import RECORDED


def new_reader():
    return NodeReader(dtype="bf16")


def read_plainly(path):
    """The nodes of a file, one by one, each with its row and labels."""
    try:
        found = [frame for _, frame in frames(read_content(path))]
        chakra.wire.metadata_of(Content(path, b""), found[0])
    except TraceError:
        chakra.read(path)
        raise
    if found.count(b"") > 1:
        chakra.read(path)
    plain = []
    for frame in found[1:]:
        try:
            node = Node(frame)
        except FAULTS:
            chakra.read(path)
            raise
        labels = {label.column: label.read(node) for label in LABELS.values()}
        plain.append((node, read_row(node, dtype="bf16"), labels))
    return plain


def counted(kind, *, flops=0, **counts):
    """A kernel of a kind: recorded ones have counts of their own."""
    return kind if kind.op.startswith(RECORDED) else replace(kind, flops=flops, bytes=counts.get("bytes", 0))


def assert_reads(reader, path):
    """A file read at once, and one by one."""
    metadata, found = reader.read(read_content(path))
    expected_metadata, _ = read_messages(path)
    assert metadata.version == expected_metadata.version
    assert_reads_attributes(expected_metadata, metadata)
    plain = read_plainly(path)
    assert found.ids.tolist() == [node.id for node, _, _ in plain]
    assert [reader.names[name] for name in found.names] == [node.name for node, _, _ in plain]
    needs = [set() for _ in plain]
    for user, need in zip(found.users.tolist(), found.needs.tolist(), strict=True):
        needs[user].add(need)
    assert needs == [set(node.dependencies) for node, _, _ in plain]
    for at, (_, row, labels) in enumerate(plain):
        expected = row._asdict() | labels
        mine = {name: column[at].item() for name, column in found.columns.items()}
        kernel, group, phase = mine["kernel"], mine["group"], mine["phase"]
        counts = {"flops": mine["flops"], "bytes": mine["bytes"]} if row.kind == NodeKind.COMPUTE else {}
        mine["kernel"] = None if kernel == NONE else counted(reader.kinds[kernel], **counts)
        mine["group"], family = ("", NONE) if group == NONE else reader.groups[group]
        assert family == mine["family"]
        mine["phase"] = reader.phases[phase]
        assert bits(mine.pop("duration_s")) == bits(expected.pop("duration_s"))
        assert mine == expected
    declared = {}
    for node, row, _ in plain:
        declared.update(declared_groups(node) if row.is_metadata else {})
    assert found.declared == declared


def frame_of(payload):
    size, encoded = len(payload), bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size]) + payload


INTEGERS = {
    **dict.fromkeys(("int32_val", "sint32_val", "sfixed32_val"), st.sampled_from([0, 1, 5, -1, 2**31 - 1, -(2**31)])),
    **dict.fromkeys(("int64_val", "sint64_val", "sfixed64_val"), st.sampled_from([0, 1, 7, -1, 2**63 - 1, -(2**63)])),
    **dict.fromkeys(("uint32_val", "fixed32_val"), st.sampled_from([0, 1, 300, 2**32 - 1])),
    **dict.fromkeys(("uint64_val", "fixed64_val"), st.sampled_from([0, 2, 2**63 - 1, 2**63, 2**64 - 1])),
}
NUMBERS = sorted({*READ, *LABELS} - {"is_cpu_op", "involved_dim", "pg_name", vocabulary.KERNEL, vocabulary.TIME_SOURCE,
                                     vocabulary.PHASE, vocabulary.ROLE, vocabulary.DURATION})  # fmt: skip


@st.composite
def integers(draw):
    """An attribute of a whole number, of any kind that holds it."""
    kind = draw(st.sampled_from(["int64_val", *INTEGERS]))
    return chakra.attribute(draw(st.sampled_from(NUMBERS)), kind, draw(INTEGERS[kind]))


def attributes(name, kind, values):
    return st.builds(chakra.attribute, st.just(name), st.just(kind), values)


def texts_of(name, *values):
    return attributes(name, "string_val", st.sampled_from(values))


ATTRIBUTES = st.one_of(
    integers(), integers(), integers(),
    attributes("is_cpu_op", "bool_val", st.booleans()),
    attributes("involved_dim", "bool_list", st.lists(st.just(value=True), max_size=3)),
    attributes(vocabulary.DURATION, "double_val", st.sampled_from([0.0, 1e-6, 2.5, -0.0, -1.0, math.nan, math.inf])),
    attributes(vocabulary.DURATION, "int64_val", st.integers(-1, 2)),
    texts_of(vocabulary.TIME_SOURCE, "given", "recorded", "measured", "nothing"),
    texts_of(vocabulary.KERNEL, "gemm bf16 M=8 N=8 K=8", "custom bf16", "softmax?", ""),
    texts_of(vocabulary.PHASE, "forward", "", "vorwärts"),
    texts_of(vocabulary.ROLE, "backward weight_gradient", "", "forward", "nothing"),
    texts_of("pg_name", "", "0", "7"),
    texts_of("op_schema", "any", "é", ""),
    attributes("rf_id", "int64_val", st.integers(-5, 5)),
    attributes("inputs", "string_list", st.lists(st.text(max_size=3), max_size=3)),
    attributes("values", "int64_list", st.lists(st.integers(-5, 5), max_size=3)),
    attributes("raw", "bytes_val", st.binary(max_size=3)),
    st.builds(lambda name: chakra.AttributeProto(name=name), st.sampled_from([*NUMBERS, "op_schema", "pg_name"])),
)  # fmt: skip


@st.composite
def messages(draw):
    """Nodes of all types, with what they need or without, and with whatever else."""
    node = draw(NODES) if draw(st.integers(0, 9)) == 0 else chakra.Node(id=draw(st.integers(0, 2**64 - 1)))
    node.type = draw(st.integers(0, 7))
    node.name = draw(st.sampled_from(["a", "kernel", "", "große", "x" * 200, "## process_group:init ##"]))
    node.duration_micros = draw(st.sampled_from([0, 0, 5, 2**53 + 1, 2**64 - 1]))
    node.data_deps.extend(draw(st.lists(st.integers(0, 400), max_size=3)))
    if draw(st.integers(0, 3)) == 0:
        node.inputs.values = draw(st.sampled_from(["", "['[]']", """['[{"pg_name": "1", "ranks": [0, 1]}]']""", "ä"]))
        node.outputs.shapes = "[]"
    if draw(st.booleans()):
        needed = ("comm_size", "comm_type", "comm_src", "comm_dst", "comm_tag")
        node.attr.extend(chakra.attribute(name, "int64_val", draw(st.integers(0, 3))) for name in needed)
    node.attr.extend(draw(st.lists(ATTRIBUTES, max_size=4)))
    return node


@st.composite
def forms(draw):
    """A node's bytes with its fields in any order, some twice, and fields of a later schema among them."""
    node = draw(messages())
    if draw(st.integers(0, 2)):
        return node.SerializeToString()
    parts = [chakra.Node(attr=[each]).SerializeToString() for each in node.attr]
    parts += [chakra.Node(id=node.id, name=node.name).SerializeToString(), chakra.Node(id=3).SerializeToString()]
    parts += [bytes([0x28, each]) for each in draw(st.lists(st.integers(0, 127), max_size=2))]  # not packed
    parts += [bytes([0x18, kind]) for kind in draw(st.lists(st.integers(0, 8), max_size=2))]
    parts += draw(
        st.lists(st.sampled_from([b"\x58\x05", b"\x61" + b"8" * 8, b"\x7d" + b"4" * 4, b"\x82\x01\x01x"]), max_size=2)
    )
    return b"".join(draw(st.permutations(parts)))


def reads(frame):
    """Whether a node is one that a trace may have."""
    try:
        node = Node(frame)
        for label in LABELS.values():
            label.read(node)
        if read_row(node, dtype="bf16").is_metadata:
            declared_groups(node)
    except (*FAULTS, ScaleoutError):
        return False
    return frame != b""


@given(found=st.lists(forms(), min_size=1, max_size=8), block=st.sampled_from([2, 1 << 15]), data=st.data())
def test_nodes_of_any_form_in_several_files_are_read_as_one_by_one(found, block, data, tmp_path_factory):
    folder, reader = tmp_path_factory.mktemp("files"), new_reader()
    some = [each for each in found * 2 if reads(each)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "_BLOCK", block)
        for rank in range(3):
            chosen = data.draw(st.permutations(some)) if rank == 1 else some[rank:]
            path = folder / f"t.{rank}.et"
            content = HAND_METADATA + b"".join(map(frame_of, chosen))
            path.write_bytes(gzip.compress(content) if rank == 2 else content)
            assert_reads(reader, path)


@given(found=st.lists(forms(), max_size=4))
def test_what_is_wrong_with_the_first_bad_node_is_said_as_when_they_are_read_one_by_one(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("bad") / "t.0.et"
    path.write_bytes(HAND_METADATA + b"".join(map(frame_of, found)))
    assert fault(lambda path: new_reader().read(read_content(path)), path) == fault(with_groups, path)


def with_groups(path):
    """Read one by one, and then the groups that metadata nodes list."""
    for node, row, _ in read_plainly(path):
        if row.is_metadata:
            declared_groups(node)


@given(where=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans(), trace=st.lists(messages(), max_size=4))
def test_a_damaged_file_is_read_as_one_by_one_or_refused_in_the_same_words(where, byte, cut, trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "t.0.et"
    sound = [each.SerializeToString() for each in trace]
    content = bytearray(HAND_METADATA + HAND_SEND + b"".join(frame_of(each) for each in sound if reads(each)))
    path.write_bytes(content)
    reader = new_reader()
    reader.read(read_content(path))
    where %= len(content)
    path.write_bytes(content[:where] if cut else content[:where] + bytes([byte]) + content[where + 1 :])
    said = fault(with_groups, path)
    assert fault(lambda path: reader.read(read_content(path)), path) == said
    if not said:
        assert_reads(new_reader(), path)


HAND_SEND = frame_of(
    chakra.Node(
        id=1,
        name="x",
        type=5,
        data_deps=[0, 300],
        attr=[chakra.attribute(name, "int64_val", 1) for name in ("comm_dst", "comm_tag", "comm_size")],
    ).SerializeToString()
)


def fault(read, path):
    """What a reader says of a bad file."""
    try:
        read(path)
    except ScaleoutError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("length", ["ff ff ff ff 0f", "81 80 80 80 80 00", "80"])
def test_lengths_that_no_message_has_are_refused(length, tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(HAND_METADATA + HAND_NODE + bytes.fromhex(length))
    with pytest.raises(TraceError, match=r"node 1 at byte 56: .*length"):
        new_reader().read(read_content(path))


def test_a_second_empty_node_is_refused(tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(HAND_METADATA + b"\0" + HAND_SEND)
    reader = new_reader()
    assert len(reader.read(read_content(path))[1].ids) == 2
    path.write_bytes(HAND_METADATA + b"\0" + HAND_SEND + b"\0")
    with pytest.raises(TraceError, match=r"node 2 at byte \d+: it is the second empty node"):
        reader.read(read_content(path))


def test_a_node_of_more_fields_than_are_split_at_a_time_is_read(tmp_path):
    fields_of_one = b"".join(bytes([0x28, number % 100]) for number in range(2 * fields._MOST_FIELDS))
    path = tmp_path / "t.0.et"
    path.write_bytes(HAND_METADATA + frame_of(b"\x08\x05" + fields_of_one) + HAND_SEND)
    assert_reads(new_reader(), path)


def test_texts_of_one_hash_have_numbers_of_their_own(monkeypatch):
    def hashed(content, starts, lengths):
        hashes, read = original(content, starts, lengths)
        return np.zeros_like(hashes), read

    original = texts._hashed
    monkeypatch.setattr(texts, "_hashed", hashed)
    known = texts.Texts()
    content = b"abcdefghijabcdefghik"
    for _ in range(2):
        numbers = known.numbers(texts.padded(content), np.array([0, 10, 0, 3, 10]), np.array([10, 10, 9, 0, 10]))
        assert numbers[1] == numbers[4]
        assert len(set(numbers.tolist())) == 4
        assert [known.known[number] for number in numbers] == [
            content[:10],
            content[10:],
            content[:9],
            b"",
            content[10:],
        ]


def test_all_columns_of_rows_are_read():
    assert {*nodes._COLUMNS, "kernel", "group"} == set(Row._fields)
