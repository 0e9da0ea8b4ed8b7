"""Chakra traces: against files of the public tools, by hand, by random messages, and with every kind of bad file."""

import contextlib
import gzip
import hashlib
import importlib.util
import json
import struct
from pathlib import Path

import chakra_messages as chakra
import pytest
from chakra_messages import read_back, read_messages
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from scaleout.errors import TraceError
from scaleout.interop.chakra import schema, wire
from scaleout.interop.chakra.tables import SCALARS

SAMPLES = Path(__file__).parents[3] / "shared" / "chakra" / "samples"
SAMPLE_NAMES = sorted(str(path.relative_to(SAMPLES)) for path in SAMPLES.rglob("*.et"))

# Worked by hand from the protobuf encoding: tag = number << 3 | wire type (0 varint, 2 length-delimited).
HAND_METADATA = bytes.fromhex("07 0a 05") + b"0.0.4"
HAND_NODE = (
    bytes.fromhex("2f")  # 47 bytes follow: 2 + 3 + 2 + 5 + 2 + 15 + 16 + 2
    + bytes.fromhex("08 01 12 01 78 18 07")  # 1 id = 1, 2 name = "x", 3 type = COMM_COLL_NODE
    + bytes.fromhex("2a 03 00 ac 02")  # 5 data_deps = [0, 300], packed; 300 = 0b10_0101100
    + bytes.fromhex("38 05")  # 7 duration_micros = 5
    + bytes.fromhex("52 0d 0a 09") + b"comm_type" + bytes.fromhex("48 00")  # 9 int64_val = 0, written
    + bytes.fromhex("52 0e 0a 09") + b"is_cpu_op" + bytes.fromhex("d8 01 00")  # 27 bool_val = false, written
    + bytes.fromhex("52 00")  # an attribute without name or value
)  # fmt: skip


def hand_trace():
    comm_type = chakra.attribute("comm_type", "int64_val", chakra.CollectiveCommType.ALL_REDUCE)
    attributes = [comm_type, chakra.attribute("is_cpu_op", "bool_val", False), chakra.AttributeProto()]
    node = chakra.Node(id=1, name="x", type=chakra.NodeType.COMM_COLL_NODE, data_deps=[0, 300], attr=attributes)
    node.duration_micros = 5
    return chakra.GlobalMetadata(version="0.0.4"), [node]


def write_bytes(folder, content):
    path = folder / "t.0.et"
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def decoded():
    if not SAMPLE_NAMES:
        pytest.skip(f"no sample traces at {SAMPLES}")
    return json.loads((SAMPLES / "decoded.json").read_text())


def plain_attribute(attribute):
    kind = attribute.WhichOneof("value")
    value = None if kind is None else getattr(attribute, kind)
    if kind is not None and kind.endswith("_list"):
        value = [item.hex() if kind == "bytes_list" else item for item in value.values]
    plain = {"name": attribute.name, "kind": kind, "value": value.hex() if kind == "bytes_val" else value}
    return plain | ({"doc_string": attribute.doc_string} if attribute.doc_string else {})


def plain_node(node):
    scalars = {name: getattr(node, name) for name in ("id", "name", "start_time_micros", "duration_micros")}
    sides = {
        side: {name: getattr(getattr(node, side), name) for name in ("values", "shapes", "types")}
        for side in ("inputs", "outputs")
        if node.HasField(side)
    }
    dependencies = {"ctrl_deps": list(node.ctrl_deps), "data_deps": list(node.data_deps)}
    attributes = [plain_attribute(attribute) for attribute in node.attr]
    return scalars | sides | dependencies | {"type": chakra.NodeType(node.type).name, "attr": attributes}


@pytest.mark.parametrize("name", SAMPLE_NAMES or ["none"])
def test_a_file_of_the_public_tools_decodes_as_theirs_and_encodes_to_the_same_bytes(name, decoded, tmp_path):
    original = (SAMPLES / name).read_bytes()
    assert hashlib.sha256(original).hexdigest() == decoded[name]["sha256"]
    metadata, nodes = read_messages(SAMPLES / name)
    attributes = [plain_attribute(attribute) for attribute in metadata.attr]
    assert {"version": metadata.version, "attr": attributes} == decoded[name]["global_metadata"]
    assert [plain_node(node) for node in nodes] == decoded[name]["nodes"]
    chakra.write(tmp_path / "copy.et", metadata, nodes)
    unzipped = gzip.decompress(original) if original.startswith(b"\x1f\x8b") else original
    assert (tmp_path / "copy.et").read_bytes() == unzipped


def test_the_encoder_writes_the_bytes_worked_by_hand(tmp_path):
    chakra.write(tmp_path / "t.0.et", *hand_trace())
    assert (tmp_path / "t.0.et").read_bytes() == HAND_METADATA + HAND_NODE


def test_defaults_are_not_written_and_an_empty_frame_is_a_node_of_defaults(tmp_path):
    chakra.write(tmp_path / "t.0.et", chakra.GlobalMetadata(), [chakra.Node(), chakra.Node(id=1)])
    assert (tmp_path / "t.0.et").read_bytes() == bytes.fromhex("00 00 02 08 01")
    assert [node.id for node in chakra.read(tmp_path / "t.0.et")[1]] == [0, 1]


def integers(low, high):
    return st.one_of(st.sampled_from([low, 0, high]), st.integers(low, high))


S32, S64 = integers(-(2**31), 2**31 - 1), integers(-(2**63), 2**63 - 1)
U32, U64 = integers(0, 2**32 - 1), integers(0, 2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = {
    "double": st.floats(),
    "float": st.floats(width=32),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), S32),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), S64),
    **dict.fromkeys(("uint32", "fixed32"), U32),
    **dict.fromkeys(("uint64", "fixed64"), U64),
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": st.binary(max_size=20),
}


@st.composite
def kinds_and_values(draw):
    kind = draw(st.sampled_from(chakra.KINDS))
    scalar, form = kind.split("_")
    return kind, draw(VALUES[scalar] if form == "val" else st.lists(VALUES[scalar], max_size=4))


def bits(value):
    """Floats by their bits, so that a NaN equals itself and -0.0 differs from 0.0."""
    if isinstance(value, list):
        return [bits(item) for item in value]
    return struct.pack("<d", value) if isinstance(value, float) else value


def node_of(kind, value, name="comm_size"):
    return read_back(chakra.Node(id=5, name="x", attr=[chakra.attribute(name, kind, value)]))


ATTRIBUTES = st.builds(lambda name, kind_and_value: chakra.attribute(name, *kind_and_value), TEXT, kinds_and_values())
NODES = st.builds(
    chakra.Node,
    id=st.integers(1, 2**64 - 1),
    name=TEXT,
    type=st.sampled_from(chakra.NodeType),
    ctrl_deps=st.lists(U64, max_size=4),
    data_deps=st.lists(U64, max_size=4),
    start_time_micros=U64,
    duration_micros=U64,
    inputs=st.none() | st.builds(chakra.IOInfo, values=TEXT, shapes=TEXT, types=TEXT),
    attr=st.lists(ATTRIBUTES | st.builds(chakra.AttributeProto, name=TEXT), max_size=4),
)
METADATA = st.builds(chakra.GlobalMetadata, version=TEXT, attr=st.lists(ATTRIBUTES, max_size=3))


def test_there_are_thirty_kinds_of_attribute_with_the_numbers_of_the_public_schema():
    fields = chakra.AttributeProto.DESCRIPTOR.oneofs_by_name["value"].fields
    assert [(field.number, field.name) for field in fields] == list(enumerate(chakra.KINDS, start=3))
    assert len(chakra.KINDS) == 30
    assert set(VALUES) == set(SCALARS)


@given(kind_and_value=kinds_and_values())
def test_an_attribute_of_any_kind_survives_the_wire_bit_by_bit(kind_and_value):
    kind, value = kind_and_value
    node = node_of(kind, value)
    assert node.attributes["comm_size"][0] == kind
    assert bits(chakra.to_dict(node)["comm_size"]) == bits(value)
    scalar, form = kind.split("_")
    python_type = PYTHON_TYPES.get(scalar, int)
    wanted = python_type if form == "val" else list[python_type]
    assert bits(chakra.get(node, "comm_size", wanted)) == bits(value)


@given(metadata=METADATA, nodes=st.lists(NODES, max_size=5), zipped=st.booleans())
def test_any_trace_survives_the_file(metadata, nodes, zipped, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "t.0.et"
    chakra.write(path, metadata, iter(nodes))
    if zipped:
        path.write_bytes(gzip.compress(path.read_bytes()))
    copied_metadata, copied_nodes = read_messages(path)
    assert copied_metadata.SerializeToString() == metadata.SerializeToString()
    assert [n.SerializeToString() for n in copied_nodes] == [n.SerializeToString() for n in nodes]


PYTHON_TYPES = {"double": float, "float": float, "bool": bool, "string": str, "bytes": bytes}


def values_of(message):
    """Kind and value of every attribute, as protobuf has them."""
    found = {}
    for attribute in message.attr:
        kind = attribute.WhichOneof("value")
        value = getattr(attribute, kind) if kind else None
        found.setdefault(attribute.name, (kind, list(value.values) if kind and kind.endswith("_list") else value))
    return found


def assert_reads_attributes(message, ours):
    expected = values_of(message)
    assert ours.attributes.keys() == expected.keys()
    for name, (kind, value) in expected.items():
        assert (ours.attributes[name][0], bits(ours.attributes[name][1])) == (kind, bits(value))


def assert_wire_reads(nodes, found):
    """Nodes as protobuf decodes them, and as `wire` does."""
    assert len(found) == len(nodes)
    for ours, node in zip(found, nodes, strict=True):
        scalars = (node.id, node.name, node.type, node.duration_micros, node.inputs.values)
        assert (ours.id, ours.name, ours.type, ours.duration_micros, ours.inputs) == scalars
        assert sorted(ours.dependencies) == sorted([*node.data_deps, *node.ctrl_deps])
        assert ours.waits == (node.id, tuple(sorted({*node.data_deps, *node.ctrl_deps})))
        assert_reads_attributes(node, ours)


@given(metadata=METADATA, nodes=st.lists(NODES, max_size=5), data=st.data())
def test_the_wire_reader_decodes_what_protobuf_does(metadata, nodes, data, tmp_path_factory):
    """Equal frames are one node, and fields may come in any order, as the format allows."""
    path = tmp_path_factory.mktemp("trace") / "t.0.et"
    chakra.write(path, metadata, [*nodes, *nodes])
    known = {}
    found_metadata, found = chakra.read(path, known)
    assert found_metadata.version == metadata.version
    assert_reads_attributes(metadata, found_metadata)
    assert_wire_reads([*nodes, *nodes], found)
    assert len(known) == len({node.SerializeToString() for node in nodes})
    for node in nodes:
        parts = [chakra.Node(attr=[each]).SerializeToString() for each in node.attr]
        parts += [chakra.Node(id=node.id, name=node.name).SerializeToString()]
        shuffled = b"".join(data.draw(st.permutations(parts)))
        assert_wire_reads([chakra.Node.FromString(shuffled)], [wire.Node(shuffled)])


@pytest.mark.parametrize("name", SAMPLE_NAMES or ["none"])
def test_the_wire_reader_decodes_files_of_the_public_tools(name, decoded):
    assert name in decoded
    metadata, nodes = read_messages(SAMPLES / name)
    ours, found = chakra.read(SAMPLES / name)
    assert_reads_attributes(metadata, ours)
    assert_wire_reads(nodes, found)


def test_numbers_that_are_not_packed_and_a_value_in_two_parts_are_read():
    """By hand: data_deps 5 and 300 one by one, the last of two ids, and a list in two fields of one attribute."""
    unpacked = bytes.fromhex("08 01 28 05 28 ac 02 08 07")
    parts = bytes.fromhex("52 0b 0a 01") + b"x" + bytes.fromhex("52 02 08 05 52 02 08 06")
    ours, node = wire.Node(unpacked + parts), chakra.Node.FromString(unpacked + parts)
    assert ours.waits == (7, (5, 300))
    assert chakra.get(ours, "x", list[int]) == values_of(node)["x"][1] == [5, 6]


@pytest.mark.parametrize("left_bytes", range(0, 48, 3))
def test_frames_may_lie_across_blocks_and_be_larger_than_one(left_bytes, tmp_path):
    """Files are read in blocks of 1 MiB: the short frames after the first one lie across the end of a block."""
    sizes = ((1 << 20) - left_bytes, 0, 1, 126, 20_000, 3 << 20, 5)
    names = [letter * size for letter, size in zip("abcdefg", sizes, strict=True)]
    nodes = [chakra.Node(id=index, name=name) for index, name in enumerate(names)]
    chakra.write(tmp_path / "t.0.et", chakra.GlobalMetadata(version="1.0.0"), nodes)
    assert [node.name for node in chakra.read(tmp_path / "t.0.et")[1]] == names


def test_a_fault_behind_good_nodes_is_found_and_the_file_closed(tmp_path):
    """An unclosed file would warn, and warnings are errors here."""
    path = write_bytes(tmp_path, HAND_METADATA + HAND_NODE + b"\x05oops")
    with pytest.raises(TraceError, match="node 1 at byte 56: the file ends after 4 of the 5 bytes"):
        chakra.read(path)


def test_fields_of_a_later_schema_are_left_out_and_written_as_they_are(tmp_path):
    """Field 15, a varint, in the metadata and in a node."""
    content = b"\x09" + HAND_METADATA[1:] + b"\x78\x01" + b"\x04\x08\x01\x78\x01"
    path = write_bytes(tmp_path, content)
    metadata, (node,) = chakra.read(path)
    assert (metadata.version, node.id) == ("0.0.4", 1)
    chakra.write(tmp_path / "copy.et", *read_messages(path))
    assert (tmp_path / "copy.et").read_bytes() == content


def test_a_file_cut_anywhere_is_refused_except_between_two_frames(tmp_path):
    """A cut between frames leaves a shorter trace that is whole: the format has no count and no end mark."""
    whole = HAND_METADATA + HAND_NODE + HAND_NODE
    boundaries = {len(HAND_METADATA): 0, len(HAND_METADATA + HAND_NODE): 1, len(whole): 2}
    for size in range(len(whole) + 1):
        path = write_bytes(tmp_path, whole[:size])
        if size in boundaries:
            assert len(chakra.read(path)[1]) == boundaries[size]
        else:
            with pytest.raises(TraceError, match=r"is empty|the file ends"):
                chakra.read(path)
    zipped = gzip.compress(whole)
    for size in range(len(zipped)):
        with pytest.raises(TraceError, match=r"is empty|the file ends|cut short or damaged"):
            chakra.read(write_bytes(tmp_path, zipped[:size]))


JSON = json.dumps({"schema": "1.0.2-chakra.0.0.4", "nodes": [{"id": 1}] * 40}, indent=2).encode()
PNG = bytes.fromhex("89504e470d0a1a0a 0000000d49484452 00000001 00000001 0806000000 1f15c489") + b"IDAT" * 5000
OTHER_SCHEMA = b"\x00" + b"\x05\x0a\x01x\x10\x04"  # a node whose field 1 is a string and 2 a number
BAD = {
    "empty": (b"", "is empty, but a trace holds at least its metadata; write or copy it again"),
    "cut in the metadata's length": (b"\x87", "metadata at byte 0: the file ends inside its length; write or"),
    "cut in the metadata": (HAND_METADATA[:-1], "metadata at byte 0: the file ends after 6 of the 7 bytes"),
    "cut in a node's length": (HAND_METADATA + b"\xff\xff", "node 0 at byte 8: the file ends inside its length"),
    "over-long length": (HAND_METADATA + b"\x80" * 9 + b"\x01", "node 0 at byte 8: its length takes more than 5"),
    "huge length": (HAND_METADATA + b"\xff" * 4 + b"\x7f", "node 0 at byte 8: its length reads 34359738367 bytes"),
    "no node": (HAND_METADATA + b"\x02\xff\xff", "node 0 at byte 8: it is no Chakra Node; write or copy it again"),
    "bad UTF-8": (HAND_METADATA + b"\x03\x12\x01\xff", "node 0 at byte 8: it is no Chakra Node"),
    "unknown type": (HAND_METADATA + b"\x02\x18\x08", "node 0 at byte 8: its type is 8, but types go from 0 to 7;"),
    "negative type": (HAND_METADATA + b"\x0b\x18" + b"\xff" * 9 + b"\x01", "its type is -1"),
    "other schema": (OTHER_SCHEMA, "node 0 at byte 1: its fields are not of the types of a Chakra Node, as in"),
    "zeros": (HAND_METADATA + HAND_NODE + bytes(99), "node 2 at byte 57: it is the second empty node"),
    "zeros only": (bytes(4096), "node 1 at byte 2: it is the second empty node.*filled with zeros"),
    "JSON": (JSON, r"is text \('\{.*not a Chakra trace; give the .et file of a rank"),
    "UTF-8 text": ("Überschrift\n".encode() * 99, "is text"),
    "text cut in a character": (b"a" * 511 + "é".encode() * 9, "is text"),
    "text that parses by chance": (b"$\n " + b" " * 32 + b" 1", "is text"),
    "PNG": (PNG, "metadata at byte 0: it is no Chakra GlobalMetadata; write or copy it again, or give the .et"),
    "another protobuf": (b"\x02\x08\x01\x02\x08\x02", "metadata at byte 0: its fields are not those of a Chakra"),
    "nothing known": (b"\x02\x78\x01\x02\x08\x02", "metadata at byte 0: its fields are not those of a Chakra"),
    "gzip of JSON": (gzip.compress(JSON), "is text"),
    "damaged gzip": (gzip.compress(HAND_METADATA)[:-8] + bytes(8), "cut short or damaged .*after byte 0 .*CRC"),
    "gzip magic only": (b"\x1f\x8b" + b"chakra", "cut short or damaged"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_in_words(case, tmp_path):
    content, message = BAD[case]
    path = write_bytes(tmp_path, content)
    with pytest.raises(TraceError, match=message) as caught:
        chakra.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_what_protobuf_takes_and_the_wire_reader_does_not_is_refused(tmp_path):
    """A group of fields (wire types 3 and 4) of a later schema, which no tool writes."""
    path = write_bytes(tmp_path, HAND_METADATA + b"\x04\x08\x01\x7b\x7c")
    assert len(read_messages(path)[1]) == 1
    with pytest.raises(TraceError, match="node 0 at byte 8: it is no Chakra Node; write or copy it again"):
        chakra.read(path)


ATTRIBUTE_X = bytes.fromhex("0a 01") + b"x"


@pytest.mark.parametrize(
    "node",
    [
        b"\x52" + bytes([7]) + ATTRIBUTE_X + bytes.fromhex("ea 01 01 ff"),
        b"\x52" + bytes([6]) + ATTRIBUTE_X + bytes.fromhex("12 01 ff"),
        b"\x42" + bytes([3]) + bytes.fromhex("12 01 ff"),
        b"\x52" + bytes([5]) + ATTRIBUTE_X + bytes.fromhex("22 07"),
    ],
    ids=["value", "doc_string", "shapes of the inputs", "list"],
)
def test_what_is_damaged_within_an_attribute_or_the_inputs_is_found(node, tmp_path):
    """Text that is not UTF-8, also where nobody reads it, and a list that is cut short."""
    path = write_bytes(tmp_path, HAND_METADATA + bytes([len(node)]) + node)
    with pytest.raises(DecodeError):
        read_messages(path)
    with pytest.raises(TraceError, match="node 0 at byte 8: it is no Chakra Node; write or copy it again"):
        chakra.read(path)


def test_damage_far_into_a_gzip_file_is_told_by_its_offset(tmp_path):
    nodes = [chakra.Node(id=1, name="x" * (3 << 20))]
    chakra.write(tmp_path / "t.0.et", chakra.GlobalMetadata(), nodes)
    zipped = gzip.compress((tmp_path / "t.0.et").read_bytes(), compresslevel=0)
    with pytest.raises(TraceError, match=r"after byte 2097152 of the trace \(.*; write or copy"):
        chakra.read(write_bytes(tmp_path, zipped[: 5 << 19]))


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"no.et: cannot be read \(No such file or directory\); give an existing"):
        chakra.read(tmp_path / "no.et")
    with pytest.raises(TraceError, match=r"cannot be read \(Is a directory\); give an existing .et file"):
        chakra.read(str(tmp_path))


@given(content=st.binary(max_size=60) | st.binary(max_size=60).map((HAND_METADATA + HAND_NODE).__add__))
def test_random_bytes_are_read_as_protobuf_reads_them_or_refused(content, tmp_path_factory):
    path = write_bytes(tmp_path_factory.mktemp("random"), content)
    with contextlib.suppress(TraceError):
        found = chakra.read(path)[1]
        assert_wire_reads(read_messages(path)[1], found)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = write_bytes(tmp_path, b"before")

    def failing():
        yield chakra.Node(id=1)
        raise RuntimeError("the source of nodes broke")

    with pytest.raises(RuntimeError, match="broke"):
        chakra.write(path, chakra.GlobalMetadata(), failing())
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_replaces_a_file_through_a_link(tmp_path):
    path = write_bytes(tmp_path, b"before")
    link = tmp_path / "link.et"
    link.symlink_to(path)
    chakra.write(link, *hand_trace())
    assert link.is_symlink()
    assert path.read_bytes() == HAND_METADATA + HAND_NODE


def test_writing_refuses_what_is_no_node_and_a_missing_folder(tmp_path):
    path = tmp_path / "t.0.et"
    with pytest.raises(TraceError, match=r"t.et: cannot be written \(No such file or directory\); give a file in"):
        chakra.write(tmp_path / "no" / "t.et", chakra.GlobalMetadata(), [])
    with pytest.raises(TraceError, match=r"node 0 is of GlobalMetadata, not ChakraProtoMsg\.Node; build it"):
        chakra.write(path, chakra.GlobalMetadata(), [chakra.GlobalMetadata()])
    with pytest.raises(TraceError, match="node 1 is the second empty one; give each node its own id"):
        chakra.write(path, chakra.GlobalMetadata(), [chakra.Node(), chakra.Node()])
    assert list(tmp_path.iterdir()) == []


def test_writing_takes_messages_of_the_public_package(tmp_path):
    """Their classes differ from ours, as those built a second time do."""
    spec = importlib.util.find_spec(schema.__name__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    public = again.MESSAGES
    node = public["Node"].FromString(hand_trace()[1][0].SerializeToString())
    chakra.write(tmp_path / "t.0.et", public["GlobalMetadata"](version="0.0.4"), [node])
    assert (tmp_path / "t.0.et").read_bytes() == HAND_METADATA + HAND_NODE


@pytest.mark.parametrize("scalar", [scalar for scalar in SCALARS if "int" in scalar or "fixed" in scalar])
def test_integers_are_taken_from_any_integer_kind(scalar):
    one, many = node_of(f"{scalar}_val", 1), node_of(f"{scalar}_list", [1, 0])
    for wanted in (int, float, bool):
        assert repr(chakra.get(one, "comm_size", wanted)) == repr(wanted(1))
        assert repr(chakra.get(many, "comm_size", list[wanted])) == repr([wanted(1), wanted(0)])


def test_an_absent_or_empty_attribute_is_the_default_or_an_error():
    second = chakra.attribute("inputs", "string_list", ["only the first of a name counts"])
    node = read_back(chakra.Node(id=5, name="x", attr=[chakra.AttributeProto(name="inputs"), second]))
    assert chakra.get(node, "comm_tag", int, default=0) == 0
    assert chakra.get(node, "inputs", list[str], default=[]) == []
    assert chakra.to_dict(node) == {"inputs": None}
    with pytest.raises(TraceError, match=r"node 5 \('x'\) has no attribute 'comm_tag'; it needs an integer, so mend"):
        chakra.get(node, "comm_tag", int)
    with pytest.raises(TraceError, match=r"node 5 \('x'\) has no value in its attribute 'inputs'; it needs a list"):
        chakra.get(node, "inputs", list[str])
    with pytest.raises(TraceError, match="the metadata has no attribute 'schema'; it needs a string"):
        chakra.get(wire.Metadata(), "schema", str)


def test_a_value_of_the_wrong_kind_is_refused():
    with pytest.raises(TraceError, match=r"^node 5 \('x'\): attribute 'comm_size' is string_val '8', but must be an"):
        chakra.get(node_of("string_val", "8"), "comm_size", int)
    with pytest.raises(TraceError, match=r"but must be a number; write it as int64_val$"):
        chakra.get(node_of("string_val", "8"), "comm_size", float)
    with pytest.raises(TraceError, match=r"'a' is double_val 8.0, but must be a string; write it as string_val"):
        chakra.get(node_of("double_val", 8, name="a"), "a", str)
    with pytest.raises(TraceError, match=r"is int64_list \[0, 1, .{33}\.\.\., but must be an integer"):
        chakra.get(node_of("int64_list", range(99)), "comm_size", int)
    with pytest.raises(TraceError, match="'comm_size' is 2, neither true nor false; write 0 or 1"):
        chakra.get(node_of("int32_val", 2), "comm_size", bool)


def test_an_attribute_that_its_kind_cannot_hold_is_refused():
    with pytest.raises(TraceError, match=r"'comm_tag': int32_val cannot hold 2147483648 .*give what it can"):
        chakra.traced("comm_tag", 2**31)
    with pytest.raises(TraceError, match="'a': string_list cannot hold 7"):
        chakra.attribute("a", "string_list", 7)
    with pytest.raises(TraceError, match="'a': no kind 'int64'; use one of double_val, double_list"):
        chakra.attribute("a", "int64", 7)


def test_the_conventional_kinds_are_kinds_and_match_the_public_tools(decoded):
    """The converter and the generator write these names; where they differ, ASTRA-sim's feeder is the judge."""
    assert set(chakra.CONVENTIONAL_KINDS.values()) <= set(chakra.KINDS)
    for name in ("pytorch_converter/handmade.0.et", "generator/ALL_REDUCE.0.et"):
        for node in decoded[name]["nodes"]:
            for attribute in node["attr"]:
                assert attribute["kind"] == chakra.CONVENTIONAL_KINDS.get(attribute["name"], attribute["kind"])
