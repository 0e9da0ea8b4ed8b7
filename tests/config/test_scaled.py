"""One number of the files scaled: whichever code reads it, nothing else, and no longer than asked."""

import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.yaml_files import scaled
from scaleout.errors import ConfigError


def test_a_sourced_number_is_scaled_within_and_as_it_was_after():
    before = load_device("mi210")
    with scaled("traces/mi210/device.yaml", "work_groups.row_latency", 1.3):
        within = load_device("mi210")
    assert within.work_groups.row_latency_s == pytest.approx(1.3 * before.work_groups.row_latency_s)
    assert within.memory_bytes_per_s == before.memory_bytes_per_s
    assert load_device("mi210").work_groups.row_latency_s == before.work_groups.row_latency_s


def test_a_pattern_scales_all_its_files_and_those_that_are_like_them():
    sizes = {name: load_topology(name).dimensions[1].bytes_per_s for name in ("sierra-8", "sierra-64")}
    with scaled("topologies/sierra-*.yaml", "dimensions.1.bandwidth", 0.7):
        for name, bytes_per_s in sizes.items():
            assert load_topology(name).dimensions[1].bytes_per_s == pytest.approx(0.7 * bytes_per_s)


def test_counts_stay_whole():
    with scaled("traces/mi210/device.yaml", "sms", 1.3):
        assert load_device("mi210").num_sms == 135


@pytest.mark.parametrize("key", ["work_groups.no_such", "name", "sms.more", "work_groups"])
def test_a_number_that_no_file_has_is_refused(key):
    message = rf"no file like traces/mi210/device.yaml with the number '{key}' was read"
    with pytest.raises(ConfigError, match=message), scaled("traces/mi210/device.yaml", key, 1.3):
        load_device("mi210")


def test_one_scaling_within_another_scales_both():
    before = load_device("mi210")
    with scaled("traces/mi210/device.yaml", "work_groups.row_latency", 1.3):
        with scaled("traces/mi210/device.yaml", "memory_bandwidth", 0.5):
            within = load_device("mi210")
        again = load_device("mi210")
    assert within.work_groups.row_latency_s == again.work_groups.row_latency_s
    assert within.work_groups.row_latency_s == pytest.approx(1.3 * before.work_groups.row_latency_s)
    assert within.memory_bytes_per_s == pytest.approx(0.5 * again.memory_bytes_per_s)
