"""What chapter 8 counts and watches: bytes, page faults, and the two speeds of a machine."""

import sys

import pytest
import torch

from attention_course import scaled_dot_product_attention
from attention_course.lab.experiments import cost


def test_peak_counts_what_is_held_at_the_same_time():
    side = 256
    table = 4 * side * side

    def one_after_the_other():
        for _ in range(3):
            torch.ones(side, side)

    def side_by_side():
        return [torch.ones(side, side) for _ in range(3)]

    assert cost.peak_bytes(one_after_the_other) == table
    assert cost.peak_bytes(side_by_side) == 3 * table


def test_peak_leaves_out_what_existed_before_and_sees_into_kernels():
    inputs = torch.randn(3, 1, 1, 512, 16).unbind(0)
    tables = 2 * 4 * 512 * 512
    assert tables <= cost.peak_bytes(lambda: cost.plain(*inputs)) < 1.1 * tables
    fused = cost.peak_bytes(lambda: scaled_dot_product_attention(*inputs, backend="fused"))
    assert 4 * 512 * 16 <= fused < tables / 2


def test_the_profiler_says_nothing(capfd):
    cost.peak_bytes(lambda: torch.ones(3))
    print("after", file=sys.stderr)
    assert capfd.readouterr().err == "after\n"


def test_both_plain_ways_are_attention():
    inputs = torch.randn(3, 2, 9, 4, dtype=torch.float64).unbind(0)
    expected = scaled_dot_product_attention(*inputs, backend="reference")
    torch.testing.assert_close(cost.plain(*inputs), expected)
    buffer = torch.zeros(2, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(cost.plain_in(buffer, *inputs), expected)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not count them for one process")
def test_page_faults_are_counted():
    assert cost.page_faults(lambda: torch.ones(64 * 2**20)) > 0


def test_a_machine_runs_below_both_of_its_limits():
    machine = cost.Machine(operations=100.0, bytes=10.0, exponentials=1.0)
    assert [machine.reachable(intensity) for intensity in (1.0, 10.0, 100.0)] == [10, 100, 100]


def test_a_machine_can_be_measured():
    assert min(cost.machine(side=64, megabytes=1)) > 0
