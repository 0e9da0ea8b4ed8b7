"""Nodes of many files, read from their bytes: what protobuf reads of each, in whatever form; and the same faults."""

import gzip
import math

import chakra_messages as chakra
import pytest
from chakra_messages import read_back, read_messages
from hypothesis import given, settings
from hypothesis import strategies as st
from test_chakra import HAND_METADATA, HAND_NODE, NODES, assert_reads_attributes, bits

from scaleout.errors import TraceError
from scaleout.interop.chakra.nodes import NodeReader


class Everything:
    """Has every name."""

    def __contains__(self, name):
        return name != "tid"


def content_of(node):
    """What is left of a node without id, name, dependencies, start and attributes that are read apart or not at all."""
    attributes = {name: each for name, each in node.attributes.items() if name not in ("label", "other", "tid")}
    kinds = {name: (kind, bits(value)) for name, (kind, value) in attributes.items()}
    return node.type, node.duration_micros, node.inputs, kinds


def label_of(name):
    return lambda node: (name, node.attributes[name])


def new_reader():
    return NodeReader(content_of, Everything(), {name: label_of(name) for name in ("label", "other")}, apart="time")


def read_apart(node, value):
    """Return the content of a node without a number that was read apart, and check that."""
    if math.isnan(value):
        return content_of(node)
    kind, time = node.attributes["time"]
    assert (kind, bits(time)) == ("double_val", bits(value))
    content = content_of(node)
    return *content[:-1], content[-1] | {"time": (kind, bits(0.0))}


def assert_reads(reader, path):
    """A file through the reader, and through protobuf."""
    metadata, numbers = reader.read(path)
    expected_metadata, nodes = read_messages(path)
    assert metadata.version == expected_metadata.version
    assert_reads_attributes(expected_metadata, metadata)
    assert len(numbers) == len(nodes)
    labels = {name: reader.values(name, None) for name in ("label", "other")}
    for number, node in zip(numbers, map(read_back, nodes), strict=True):
        begin, end = reader.dependency_offsets[number : number + 2]
        assert (reader.ids[number], reader.names[number]) == (node.id, node.name)
        assert reader.dependencies[begin:end].tolist() == sorted(set(node.dependencies))
        assert reader.contents[reader.content_of[number]] == read_apart(node, reader.values_apart[number])
        for name, values in labels.items():
            expected = (name, node.attributes[name]) if name in node.attributes else None
            assert values[reader.labels_of[number]] == expected
        whole = reader.node(number)
        assert (whole.id, whole.waits, content_of(whole)) == (node.id, node.waits, content_of(node))


def frame_of(payload):
    size, encoded = len(payload), bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*encoded, size]) + payload


LABELS = st.builds(
    chakra.attribute, st.sampled_from(["label", "other", "tid"]), st.just("int64_val"), st.integers(-1, 1000)
)


TIMES = st.builds(chakra.attribute, st.just("time"), st.just("double_val"), st.floats()) | st.just(
    chakra.attribute("time", "int64_val", 3)
)


@st.composite
def nodes(draw):
    """Nodes of any kind with labels and times, and texts in which one stands as an attribute writes it."""
    node = draw(NODES)
    node.attr.extend(draw(st.lists(LABELS | TIMES, max_size=4)))
    if draw(st.booleans()):
        name, kind, value = draw(st.sampled_from([("label", "int64_val", 7), ("time", "double_val", 7.0)]))
        inside = chakra.Node(attr=[chakra.attribute(name, kind, value)]).SerializeToString()
        node.attr.insert(
            draw(st.sampled_from([0, len(node.attr)])),
            chakra.attribute("text", "bytes_val", draw(st.binary(max_size=3)) + inside),
        )
    return node


@st.composite
def forms(draw):
    """A node's bytes with its fields in any order, some twice, and fields of a later schema among them."""
    node = draw(nodes())
    if draw(st.booleans()):
        return node.SerializeToString()
    parts = [chakra.Node(attr=[each]).SerializeToString() for each in node.attr]
    parts += [chakra.Node(id=node.id, name=node.name).SerializeToString(), chakra.Node(id=3).SerializeToString()]
    parts += [bytes([0x28, each]) for each in draw(st.lists(st.integers(0, 127), max_size=2))]  # not packed
    parts += draw(
        st.lists(st.sampled_from([b"\x58\x05", b"\x61" + b"8" * 8, b"\x7d" + b"4" * 4, b"\x82\x01\x01x"]), max_size=2)
    )
    return b"".join(draw(st.permutations(parts)))


@given(forms=st.lists(forms(), min_size=1, max_size=5), data=st.data())
def test_nodes_of_any_form_in_several_files_are_read_as_protobuf_reads_them(forms, data, tmp_path_factory):
    folder, reader = tmp_path_factory.mktemp("files"), new_reader()
    for rank in range(3):
        some = [each for each in forms * 3 if each]
        chosen = data.draw(st.permutations(some)) if rank == 1 else some[rank:]
        path = folder / f"t.{rank}.et"
        content = HAND_METADATA + b"".join(map(frame_of, chosen))
        path.write_bytes(gzip.compress(content) if rank == 2 else content)
        assert_reads(reader, path)
    assert len(reader.ids) == len({each for each in forms if each})


def test_of_types_that_repeat_the_last_counts_and_others_may_be_none(tmp_path):
    node = chakra.Node(id=1, name="x").SerializeToString()
    path = tmp_path / "t.0.et"
    path.write_bytes(HAND_METADATA + frame_of(node + bytes([0x18, 24, 0x18, 4])))
    assert_reads(new_reader(), path)


def test_nodes_that_differ_in_id_dependencies_and_labels_share_their_content(tmp_path):
    reader = new_reader()
    for rank in range(2):
        attrs = [[chakra.attribute("label", "int64_val", label)] for label in (1, 2, 1)]
        same = [chakra.Node(id=10 * rank + i, name="x", data_deps=range(i), attr=attr) for i, attr in enumerate(attrs)]
        chakra.write(tmp_path / f"t.{rank}.et", chakra.GlobalMetadata(version="1"), same)
        assert reader.read(tmp_path / f"t.{rank}.et")[1] == [3 * rank, 3 * rank + 1, 3 * rank + 2]
    assert reader.contents == [(0, 0, "", {})]
    assert list(reader.labels_of) == [0, 1, 0] * 2
    assert list(reader.ids) == [0, 1, 2, 10, 11, 12]


@given(where=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans(), trace=st.lists(nodes(), max_size=4))
@settings(max_examples=300)
def test_a_damaged_file_is_read_as_protobuf_reads_it_or_refused_in_its_words(where, byte, cut, trace, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "t.0.et"
    reader = new_reader()
    content = bytearray(HAND_METADATA + HAND_NODE + b"".join(frame_of(each.SerializeToString()) for each in trace))
    path.write_bytes(content)
    reader.read(path)
    where %= len(content)
    path.write_bytes(content[:where] if cut else content[:where] + bytes([byte]) + content[where + 1 :])
    said = fault(chakra.read, path)
    assert fault(reader.read, path) == said
    if not said:
        assert_reads(reader, path)


def fault(read, path):
    """What a reader says of a bad file."""
    try:
        read(path)
    except TraceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("length", ["ff ff ff ff 0f", "81 80 80 80 80 00", "80"])
def test_lengths_that_no_message_has_are_refused(length, tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(HAND_METADATA + HAND_NODE + bytes.fromhex(length))
    with pytest.raises(TraceError, match=r"node 1 at byte 56: .*length"):
        new_reader().read(path)


def test_a_second_empty_node_is_refused(tmp_path):
    path = tmp_path / "t.0.et"
    path.write_bytes(HAND_METADATA + b"\0" + HAND_NODE)
    reader = new_reader()
    assert len(reader.read(path)[1]) == 2
    path.write_bytes(HAND_METADATA + b"\0" + HAND_NODE + b"\0")
    with pytest.raises(TraceError, match=r"node 2 at byte 57: it is the second empty node"):
        reader.read(path)


def test_times_that_differ_are_read_apart_and_share_their_content(tmp_path):
    reader = new_reader()
    times = [0.0, 1.5, 2.5, 1.5]
    written = [
        chakra.Node(id=i, name="x", attr=[chakra.attribute("time", "double_val", time)]) for i, time in enumerate(times)
    ]
    chakra.write(tmp_path / "t.0.et", chakra.GlobalMetadata(version="1"), written)
    reader.read(tmp_path / "t.0.et")
    assert reader.values_apart.tolist() == times
    assert len(reader.contents) == 1


def test_of_times_that_repeat_the_first_counts(tmp_path):
    first, second = chakra.attribute("time", "int64_val", 3), chakra.attribute("time", "double_val", 2.5)
    chakra.write(tmp_path / "t.0.et", chakra.GlobalMetadata(version="1"), [chakra.Node(id=1, attr=[first, second])])
    reader = new_reader()
    assert_reads(reader, tmp_path / "t.0.et")
    assert math.isnan(reader.values_apart[0])
