"""Units: every one that is understood, bits against bytes, decimal against binary, and what is refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.config import units
from scaleout.config.units import (
    BYTES,
    BYTES_PER_S,
    FEW_BYTES,
    FLOPS_PER_S,
    HERTZ,
    SECONDS,
    TOKENS,
    format_bytes,
    format_bytes_per_s,
    format_dollars,
    format_flops_per_s,
    format_joules,
    format_rate,
    format_seconds,
    format_tokens,
    parse,
)
from scaleout.errors import ConfigError
from scaleout.workloads.families import load_workload

DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
PREFIXES = list((DECIMAL | BINARY).items())


@pytest.mark.parametrize(("prefix", "factor"), PREFIXES)
def test_a_byte_is_eight_bits(prefix, factor):
    assert parse(f"3{prefix}B", BYTES) == 3 * factor
    assert parse(f"3 {prefix}B/s", BYTES_PER_S) == 3 * factor
    assert parse(f"3{prefix}b/s", BYTES_PER_S) == 3 * factor / 8


@pytest.mark.parametrize(("prefix", "factor"), DECIMAL.items())
def test_compute_rates(prefix, factor):
    assert parse(f"2.5 {prefix}FLOP/s", FLOPS_PER_S) == 2.5 * factor
    assert parse(f"2.5{prefix}FLOPS", FLOPS_PER_S) == 2.5 * factor


@pytest.mark.parametrize(
    ("unit", "factor"),
    [("s", 1), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("min", 60.0), ("h", 3600.0), ("day", 86400.0)],
)
def test_times(unit, factor):
    assert parse(f"700 {unit}", SECONDS) == 700 * factor


def test_every_unit_is_tested_above():
    assert 2 * len(BYTES.factors) == len(BYTES_PER_S.factors) == 2 * len(PREFIXES)
    assert len(FLOPS_PER_S.factors) == 2 * len(DECIMAL)
    assert len(SECONDS.factors) == 8


def test_a_gigabyte_is_not_a_gibibyte():
    assert parse("1GB", BYTES) == 1_000_000_000
    assert parse("1GiB", BYTES) == 1_073_741_824
    assert parse("400 Gb/s", BYTES_PER_S) == 50e9


@pytest.mark.parametrize("text", ["1e3", 1000, 1000.0, " 1_000 ", "1000.", "+1000 B"])
def test_plain_numbers_are_bytes(text):
    assert parse(text, BYTES) == 1000


@pytest.mark.parametrize("text", [25, "25", "999", 1, 1.0])
def test_few_bytes_need_a_unit(text):
    """Who writes so few means MiB or GB; sizes of messages are counted from a few bytes on."""
    told = f"{text!r} has no unit, and is to be a size; write it like '{text}MiB' or '{text}GB', or as '{text}B' if"
    with pytest.raises(ConfigError, match=re.escape(told)):
        parse(text, BYTES)
    assert parse(f"{text}B", BYTES) == parse(text, FEW_BYTES) == float(text)
    assert parse(0, BYTES) == parse("0", BYTES) == 0


def test_few_bytes_of_a_validated_model_are_read_again():
    workload = load_workload("resnet-50")
    assert type(workload).model_validate(workload.model_dump()).gradient_bucket == 1.0


def test_tokens_are_counted_without_a_unit_but_few_are_a_slip():
    assert parse("1e12", TOKENS) == parse("1T", TOKENS) == parse(10**12, TOKENS)
    with pytest.raises(ConfigError, match="'15' has no unit, and is to be a number of tokens; write it like '15T'"):
        parse("15", TOKENS)


@pytest.mark.parametrize("quantity", [BYTES_PER_S, SECONDS, FLOPS_PER_S, HERTZ])
def test_all_else_but_zero_needs_a_unit(quantity):
    assert parse(0, quantity) == parse("0", quantity) == 0
    for text in ("2", 2, 2.5):
        with pytest.raises(ConfigError, match=rf"has no unit, and is to be {quantity.name}; write it like"):
            parse(text, quantity)


@pytest.mark.parametrize(
    ("text", "quantity", "message"),
    [
        ("64 miB", BYTES, "'64 miB': unknown unit 'miB' for a size; did you mean 'MiB'?"),
        ("1Gb", BYTES, "'1Gb': unknown unit 'Gb' for a size; did you mean 'GB'? a b is a bit, a B a byte"),
        ("400 Gbps", BYTES_PER_S, "unknown unit 'Gbps' for a bandwidth; did you mean 'Gb/s'?"),
        ("1 GB/week", BYTES_PER_S, "unknown unit 'GB/week' for a bandwidth; use one of B/s"),
        ("200 Gb", BYTES_PER_S, "unknown unit 'Gb' for a bandwidth; did you mean 'Gb/s'?"),
        ("1 week", SECONDS, "unknown unit 'week' for a time; use one of s, ms, us"),
        ("fast", BYTES_PER_S, "'fast' is not a bandwidth; write it like '200 Gb/s'"),
        ("", SECONDS, "'' is not a time; write it like '700 ns'"),
        ("1 2 B", BYTES, "'1 2 B' is not a size; write it like '64MiB'"),
        (True, BYTES, "True is not a size; write it like '64MiB'"),
        (None, FLOPS_PER_S, "None is not a compute rate; write it like '989 TFLOP/s'"),
        ("-1 ns", SECONDS, "'-1 ns' is not a time: it must be finite and not negative"),
        (float("nan"), SECONDS, "nan is not a time: it must be finite"),
        (float("inf"), BYTES, "inf is not a size: it must be finite"),
        ("1e400 B", BYTES, "'1e400 B' is not a size: it must be finite"),
    ],
)
def test_what_is_refused_and_what_is_said(text, quantity, message):
    with pytest.raises(ConfigError) as caught:
        parse(text, quantity)
    assert message in str(caught.value)


FORMATS = (
    format_bytes, format_bytes_per_s, format_dollars, format_flops_per_s, format_joules, format_rate, format_seconds,
    format_tokens,
)  # fmt: skip


def test_numbers_are_written_for_people():
    assert format_bytes(64 * 2**20) == "64 MiB"
    assert format_bytes(1000) == "1000 B"
    assert format_bytes_per_s(25e9) == "25 GB/s"
    assert format_flops_per_s(989.4e12) == "989 TFLOP/s"
    times = (0, 7e-7, 1.5e-6, 0.25, 90, 5400, 1.9e8, 1e-12)
    assert [format_seconds(time_s) for time_s in times] == [
        "0 s", "700 ns", "1.5 us", "250 ms", "90 s", "1.5 h", "2200 day", "1e-12 s"
    ]  # fmt: skip


@given(st.floats(1e-9, 1e5))
def test_what_is_written_can_be_read(value):
    for write, quantity in (
        (format_seconds, SECONDS),
        (format_bytes, BYTES),
        (format_bytes_per_s, BYTES_PER_S),
        (format_flops_per_s, FLOPS_PER_S),
    ):
        assert parse(write(value), quantity) == pytest.approx(value, rel=5e-3)


@given(st.floats(1e-9, 1e12), st.sampled_from(FORMATS))
def test_numbers_have_three_digits(value, write):
    digits = re.sub("[^0-9]", "", write(value)).strip("0")
    assert len(digits) <= 3 or "e" in write(value)


def test_what_is_rounded_keeps_its_zeros_and_what_is_exact_has_none():
    assert [format_joules(joules) for joules in (6298, 2321, 6300)] == ["6.30 kJ", "2.32 kJ", "6.3 kJ"]
    assert [format_seconds(time_s) for time_s in (1.8996, 0.01603, 0.1196, 0.9996)] == [
        "1.90 s", "16.0 ms", "120 ms", "1.00 s"
    ]  # fmt: skip
    assert [format_rate(per_s) for per_s in (4.9983, 5, 1329.7, 999.7)] == ["5.00", "5", "1,330", "1,000"]


@given(st.integers(10_000, 9_999_999), st.sampled_from((format_bytes_per_s, format_joules, format_rate)))
def test_rounded_numbers_have_three_digits_or_more(value, write):
    digits = re.sub("[^0-9]", "", write(value + 0.1))
    assert len(digits) >= 3


@pytest.mark.parametrize(
    ("dollars", "written"),
    [(0, "$0"), (36, "$36"), (999.4, "$999"), (999.6, "$1.00 k"), (655_360, "$655 k"), (4.96e6, "$4.96 M"),
     (999.6e6, "$1.00 B"), (2.5e12, "$2500 B")],
)  # fmt: skip
def test_dollars(dollars, written):
    assert format_dollars(dollars) == written


@given(st.floats(1e3, 1e15))
def test_tokens_are_written_as_they_are_read(tokens):
    assert parse(format_tokens(tokens), TOKENS) == pytest.approx(tokens, 5e-3)
    assert format_tokens(15e12) == "15T"


BOUNDS = {
    **dict.fromkeys(("BYTES", "FEW_BYTES", "BYTES_PER_S"), (1e-9, 1e18)), "SECONDS": (1e-15, 1e9),
    "FAILURES": (1e-18, 1e3), "TOKENS": (1.0, 1e18), "HERTZ": (1e-9, 1e18), "WATTS": (1e-9, 1e18),
    "JOULES": (1e-18, 1e9), "DOLLARS": (1e-3, 1e15), "RENT": (1e-9, 1e6), "FLOPS_PER_S": (1e-9, 1e24),
}  # fmt: skip
"""Quantity to the least and the largest value that it can have, in SI units."""


@pytest.mark.parametrize("name", [name for name, value in vars(units).items() if isinstance(value, units.Quantity)])
def test_every_quantity_has_its_bounds(name):
    quantity, (least, most) = getattr(units, name), BOUNDS[name]
    unit, factor = next(iter(quantity.factors.items()))
    for value in (least * 1.01, most * 0.99):
        assert parse(f"{value / factor:.15e} {unit}", quantity) == pytest.approx(value)
    for value in (least * 0.99, most * 1.01):
        with pytest.raises(ConfigError, match="it must be 0, or from") as refused:
            parse(f"{value / factor:.15e} {unit}", quantity)
        assert f"from {least / factor:g} to {most / factor:g} {unit}" in str(refused.value)
