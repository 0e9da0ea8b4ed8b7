"""Choices between times do not hang on the last bits of them."""

from hypothesis import given
from hypothesis import strategies as st

from scaleout.program.fastest import MARGIN, fastest, is_faster, ranked

times = st.lists(st.sampled_from([1.0, 1.0 + 1e-6, 2.0, 3.5, 1e-7]), min_size=1, max_size=8)
noise = st.lists(st.integers(-9, 9).map(lambda number: number * 1e-14), min_size=8, max_size=8)


@given(times, noise)
def test_rounding_changes_no_choice(seconds, errors):
    rough = [each * (1 + error) for each, error in zip(seconds, errors, strict=False)]
    ways = range(len(seconds))
    assert fastest(ways, rough.__getitem__) == seconds.index(min(seconds))
    assert ranked(ways, rough.__getitem__, lambda way: way) == sorted(ways, key=lambda way: (seconds[way], way))


def test_what_is_faster_is_so_by_more_than_rounding():
    assert not is_faster(1 - MARGIN / 2, 1.0)
    assert is_faster(1 - 2 * MARGIN, 1.0)
    assert not is_faster(float("inf"), float("inf"))
    assert fastest([float("inf"), float("inf")], lambda each: each) == float("inf")
