"""JSON that is read piece by piece is what `json` reads at once, wherever a piece ends; limits by message."""

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.config import long_json
from scaleout.config.long_json import LEFT_OUT, read_long_json

SCALARS = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=15,
)
EVERYTHING = {"": lambda value: value, "events": lambda value: value}


def read(content, takes=EVERYTHING, *, piece=7):
    """Read bytes in pieces of a few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "_PIECE", piece)
        patch.setattr(long_json, "_TOGETHER", min(piece, long_json._TOGETHER))
        return read_long_json(io.BytesIO(content).read, takes)


@given(
    value=VALUES | st.fixed_dictionaries({"events": st.lists(VALUES, max_size=5)}, optional={"a": VALUES}),
    indent=st.sampled_from([None, 1]), ascii_only=st.booleans(), piece=st.integers(1, 40),
)  # fmt: skip
def test_it_is_what_json_reads(value, indent, ascii_only, piece):
    content = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        content.decode()
    except UnicodeDecodeError:
        with pytest.raises(ValueError, match="utf-8"):
            read(content, piece=piece)
        return
    assert repr(read(content, piece=piece)) == repr(json.loads(content))


TEXTS = st.text('"\\:{}[], a', max_size=4)
OBJECTS = st.lists(st.dictionaries(TEXTS, TEXTS | st.lists(st.dictionaries(TEXTS, TEXTS)), max_size=3), min_size=1)


@given(objects=OBJECTS, piece=st.integers(1, 200), indent=st.sampled_from([None, 1]), data=st.data())
def test_objects_that_are_read_together_have_each_key_once(objects, piece, indent, data):
    """Quotes, escapes and brackets in texts neither hide a key that stands twice nor look like one."""
    content = json.dumps(objects, indent=indent)
    assert read(content.encode(), piece=piece) == objects
    keys = [found for found in re.finditer(r'("(?:[^"\\]|\\.)*")(\s*:)?', content) if found[2]]
    if keys:
        key = data.draw(st.sampled_from(keys))
        twice = content[: key.start()] + f"{key[1]} : {data.draw(st.sampled_from(['0', key[1], '{}']))}, "
        with pytest.raises(ValueError, match="stands twice"):
            read((twice + content[key.start() :]).encode(), piece=piece)


@given(value=st.fixed_dictionaries({"events": st.lists(VALUES, max_size=5)}), data=st.data())
def test_what_is_cut_off_or_followed_by_more_is_refused(value, data):
    content = json.dumps(value).encode()
    cut = data.draw(st.integers(0, len(content) - 1))
    for damaged in (content[:cut], content + b" 1", content + b"]"):
        with pytest.raises(ValueError, match="character"):
            read(damaged)


LONG = st.text('"\\\\90u ', max_size=4).map(lambda text: text + "9" * 20 + text) | st.text('"\\\\90u', max_size=30)
NUMBERS = st.sampled_from((0, 2**63 - 1, 2**63, 10**20, -(10**20), 1e20, 99999999999999999999.5))


@given(
    objects=st.lists(st.fixed_dictionaries({"a": LONG}, optional={"b": NUMBERS, "c": LONG}), min_size=2, max_size=9),
    piece=st.integers(1, 200),
)
def test_long_numbers_are_found_and_texts_of_digits_are_none(objects, piece):
    content = json.dumps(objects).encode()
    if any(isinstance(each.get("b"), int) and abs(each["b"]) >= 2**63 for each in objects):
        with pytest.raises(ValueError, match="64 bits"):
            read(content, piece=piece)
    else:
        assert read(content, piece=piece) == objects


def test_objects_with_texts_of_digits_are_read_together(monkeypatch):
    alone, value = [], long_json._Text.value
    monkeypatch.setattr(long_json._Text, "value", lambda text: alone.append(text) or value(text))
    objects = [{"a": "9" * 20 + '"', "b": '" ' + "1" * 30 + "\\", "c": " 9" * 20}] * 4000
    assert read_long_json(io.BytesIO(json.dumps(objects).encode()).read, EVERYTHING) == objects
    assert len(alone) < 400  # the last, which no object follows


def test_elements_are_chosen_and_changed():
    takes = {"events": lambda value: 10 * value if value > 2 else LEFT_OUT}
    assert read(b'{"events": [0, 1, 2, 3, 4], "others": [1, 2]}', takes) == {"events": [30, 40], "others": [1, 2]}
    assert read(b"[0, 1]", takes) == [0, 1]


REFUSED = {
    b'{"a": 1, "a": 2}': "stands twice",
    b'{"events": [], "events": [1]}': "stands twice",
    b'{"events": [{"a": 1, "a": 2}]}': "stands twice",
    b'{"events": [99999999999999999999]}': "64 bits",
    b'{"events": [NaN]}': "no finite number",
    b'[{"a": "\\ud83d\\ude00"}, {"a": "\\uD800"}, {"a": 0}]': "half of a surrogate pair in the value at character 24",
    b'[{"a": 0}, {"a": 9223372036854775808}, {"a": 0}]': "'9223372036854775808' takes more than 64 bits",
    b'[{"a": 0}, {"a": -18446744073709551616}, {"a": 0}]': "takes more than 64 bits",
    b'[{"a": 0}, {"a": 1e400}, {"a": 0}]': "'1e400' is no finite number",
    b'[{"a": 0}, {"a": ' + b"[" * 64 + b"]" * 64 + b'}, {"a": 0}]': "64 levels",
    b'[{"a": 0}, {"a": 0}], [{"a": 0}, {"a": 0}]': "something follows its end at character 20",
    b'{"events": [{}, {}], "b": [{}, {}], "b": [{}, {}]}': "stands twice",
    b'{"events": [1 2]}': "',' or ']' is expected at character 14, not '2'",
    b'{"events": [1,]}': "Expecting value at character 14",
    b"{1: 2}": "a key in quotes is expected at character 1, not '1'",
    b'{"a" 1}': "':' is expected at character 5",
    b'{"a": 1} {': "something follows its end at character 9",
    b"": "Expecting value at character 0",
    b'{"events": [' + b"[" * 65 + b"]" * 65 + b"]}": "64 levels",
    b"[" * 100_000: "64 levels",
    b'{"a": "' + b"x" * 2**25 + b'"}': "a value of more than 16,777,216 characters begins at character 6",
    b'{"events": [{"a": "'
    + b"x" * 2**25
    + b'"}]}': "a value of more than 16,777,216 characters begins at character 12",
    b'{"events": [[' + b"1," * 2**22 + b"1]]}": "1,000,000 values",
    b"{" + b", ".join(b'"%d": 0' % number for number in range(10_001)) + b"}": "10,000 keys beside events",
}


@pytest.mark.parametrize("content", REFUSED, ids=lambda content: content[:20].decode())
def test_what_is_refused(content):
    with pytest.raises(ValueError, match=re.escape(REFUSED[content])):
        read(content, piece=2**20)


@pytest.mark.parametrize("number", [b"0.0", b"1e-05", b"-12.5E+7", b"1.5e3"])
def test_a_number_may_be_cut_anywhere(number):
    for piece in range(1, len(number) + 2):
        for content in (number, b"[" + number + b"]"):
            assert read(content, piece=piece) == json.loads(content)
