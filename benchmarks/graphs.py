"""What does attention along edges take, to a million of them, beside all pairs and beside torch-geometric?

    python benchmarks/graphs.py                        # about five minutes
    python benchmarks/graphs.py --largest 4096         # no graph with more nodes

Forward and backward of one layer, 4 heads of 8, 16 edges into each node from random sources. The ways of
one line take turns in one process, and the ratio is the median over the turns of first / second; memory
is what a fresh process rises by in one call. Without torch-geometric its lines are left out.
"""

import argparse
import os
import platform
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from measuring import extra_megabytes, in_a_process, seconds

from attention_course.lab.experiments import graphs

SIZES = (1024, 4096, 16384, 65536)
#: beyond this many nodes a table of all pairs is not tried: one of float32 for 4 heads takes 268 MB
LARGEST_TABLE = 4096
# glibc gives every block back as soon as it is freed, and the peak is of what is in use (attention.py)
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}


def theirs(score: str, num_nodes: int) -> Callable[[], None]:
    """The same pass by torch-geometric's layer, over the same graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own deprecations
        from torch_geometric.nn import GATConv, GATv2Conv
    generator = torch.Generator().manual_seed(0)
    edges = graphs.random_edges(num_nodes, graphs.DEGREE, generator)
    d_model = graphs.HEADS * graphs.WIDTH
    x = torch.randn(num_nodes, d_model, generator=generator).requires_grad_()
    layer = {"gat": GATConv, "gatv2": GATv2Conv}[score](
        d_model, graphs.WIDTH, graphs.HEADS, add_self_loops=False
    )

    def call() -> None:
        torch.autograd.grad(layer(x, edges).square().mean(), [x, *layer.parameters()])

    return call


WAYS = {way: partial(graphs.work, way) for way in ("gat", "gatv2", "dense")}
WAYS |= {f"torch-geometric {score}": partial(theirs, score) for score in ("gat", "gatv2")}


def megabytes(way: str, num_nodes: int) -> float:
    """How far a fresh process rises in one call."""
    return float(in_a_process(os.path.abspath(__file__), "--memory", way, str(num_nodes), **GIVE_BACK))


def line(first: str, second: str, num_nodes: int) -> None:
    calls = {way: WAYS[way](num_nodes) for way in (first, second)}
    taken, ratio = seconds(calls, device="cpu", rounds=7)
    del calls
    ms = " / ".join(f"{1000 * taken[way]:8.2f}" for way in (first, second))
    mb = " / ".join(f"{megabytes(way, num_nodes):5.0f}" for way in (first, second))
    what = f"{first}, N={num_nodes}, E={num_nodes * graphs.DEGREE}"
    print(f"{what:30} {second:22} {ms:>22} {ratio:8.3f} {mb:>16}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--largest", type=int, default=SIZES[-1], metavar="NODES")
    parser.add_argument("--memory", nargs=2, metavar=("WAY", "NODES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        way, num_nodes = options.memory
        WAYS[way](16)()  # what a first pass reserves is nobody's own
        print(extra_megabytes(WAYS[way](int(num_nodes)), device="cpu"))
        return
    print(f"torch {torch.__version__}, {platform.machine()}, {options.threads} thread(s), float32")
    if find_spec("torch_geometric"):
        from importlib.metadata import version

        print(f"torch-geometric {version('torch-geometric')}")
    print(f"\n{'':30} {'beside':22} {'ms':>22} {'ratio':>8} {'extra MB':>16}")
    sizes = [n for n in SIZES if n <= options.largest]
    for num_nodes in sizes:
        if num_nodes <= LARGEST_TABLE:
            line("gat", "dense", num_nodes)
    for score in ("gat", "gatv2"):
        for num_nodes in sizes:
            if find_spec("torch_geometric"):
                line(score, f"torch-geometric {score}", num_nodes)
            else:
                line(score, "gat", num_nodes)


if __name__ == "__main__":
    main()
