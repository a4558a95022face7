"""How fast, and with how much memory, is the taught code beside what torch offers?

    python benchmarks/attention.py                     # everything, about 10 minutes on two cores
    python benchmarks/attention.py --only tiled        # the cases whose names contain this
    python benchmarks/attention.py --device cuda

Each line compares two ways in one process and one run, in turns; the ratio is the median over the
turns of first / second. Extra memory is measured in a fresh process for each way. Nothing fails: a
line says whether it reached what was promised of it.
"""

import argparse
import os
import platform

import torch
from cases import CASES, Case
from measuring import NARROW, extra_megabytes, in_a_process, roofline, seconds

# With this glibc gives every block back as soon as it is freed, and the peak is of what is in use. As it
# is, it hoards: the same call of nn.MultiheadAttention rose by 155 MB in one process and by 206 in another.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": str(1 << 16)}
# With these glibc keeps what was freed, and no call pays for pages it touches for the first time.
KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": str(1 << 34), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases whose names contain TEXT")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory", nargs=2, metavar=("CASE", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--ratio", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory:
        print(_memory(*options.memory, options.device))
    elif options.ratio:
        case = CASES[options.ratio]
        print(*_seconds(case, options.device))
    else:
        chosen = [case for name, case in CASES.items() if options.only in name]
        _table([case for case in chosen if case.device in (None, options.device)], options.device)


def _memory(name: str, way: str, device: str) -> float:
    call = CASES[name].make(device)[way]
    a = torch.randn(512, 512, device=device, requires_grad=True)
    (a @ a).sum().backward()  # what a first product and a first backward pass reserve is nobody's own
    if device == "cuda":
        call()  # Triton tries its block sizes once, with 256 MB of its own
    return extra_megabytes(call, device=device)


def _seconds(case: Case, device: str) -> list[float]:
    """The median of each contender, then the median ratio of the first two."""
    taken, ratio = seconds(case.make(device), device=device, rounds=case.rounds)
    return [*taken.values(), ratio]


def _table(cases: list[Case], device: str) -> None:
    where = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {where}, {torch.get_num_threads()} threads, float32")
    rates = roofline(device)
    for name, value in rates.items():
        print(f"  {name}: {value:.0f}")
    print()
    print(f"{'':62} {'ms':>17} {'ratio':>7} {'extra MB':>15}   promised")
    for case in cases:
        _line(case, device, {}, rates=rates)
        if case.name.startswith("naive") and device == "cpu":
            _line(case, device, KEEP_PAGES, rates=rates, title="  the same, pages kept")


def _line(
    case: Case, device: str, environment: dict[str, str], *, rates: dict[str, float], title: str = ""
) -> None:
    run = [os.path.abspath(__file__), "--device", device, "--threads", str(torch.get_num_threads())]
    if environment:
        *taken, ratio = map(float, in_a_process(*run, "--ratio", case.name, **environment).split())
        megabytes = []
    else:
        *taken, ratio = _seconds(case, device)
        ways = list(case.make(device))[:2]
        megabytes = [float(in_a_process(*run, "--memory", case.name, way, **GIVE_BACK)) for way in ways]
    kept = [] if case.time is None or environment else [(ratio <= case.time, f"{case.time:.3g}x")]
    if case.megabytes is not None and megabytes:
        kept.append((megabytes[0] <= case.megabytes, f"{case.megabytes:g} MB"))
    if case.share is not None and megabytes:
        kept.append((megabytes[0] <= case.share * megabytes[1], f"{case.share:.2g} of its memory"))
    if case.operations is not None:
        kept.append((taken[0] <= taken[-1] / 0.8, "0.8 of torch's fastest"))
    promised = ", ".join(f"{what}: {'yes' if good else 'NO'}" for good, what in kept)
    memory = " / ".join(f"{value:.0f}" for value in megabytes)
    times = f"{1e3 * taken[0]:8.2f} /{1e3 * taken[1]:8.2f} {ratio:7.3f}"
    print(
        f"{title or case.what:62} {times} {memory:>15}   {promised}{_rates(case, taken, rates)}", flush=True
    )


def _rates(case: Case, taken: list[float], rates: dict[str, float]) -> str:
    """Operations per second of every contender, and the first one's share of what products reach here."""
    if case.operations is None:
        return ""
    tera = " / ".join(f"{case.operations / each / 1e12:.3g}" for each in taken)
    share = case.operations / taken[0] / 1e9 / rates[NARROW] if NARROW in rates else float("nan")
    return f"; {tera} TFLOP/s, {share:.0%} of products"


if __name__ == "__main__":
    main()
