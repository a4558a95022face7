"""The instruments of ``benchmarks/``: a ratio within a run, memory of one call; and the kept tables."""

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which nothing has done yet

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
RESULTS = FOLDER / "results"


@pytest.fixture(autouse=True)
def reachable(monkeypatch):
    """The programs import each other from their own folder."""
    monkeypatch.syspath_prepend(str(FOLDER))


def test_a_ratio_is_that_of_calls_which_take_turns(monkeypatch):
    import measuring

    order = []
    # A clock that the calls set forward: by 4 and 1, and from the third round on, when the machine is
    # slow, by 40 and 10. Only the ratio within a round is the same throughout.
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: float(sum(ticks(order)))))
    calls = {name: partial(order.append, name) for name in ("slow", "quick")}
    taken, ratio = measuring.seconds(calls, device="cpu", at_least=0.0, rounds=5)
    assert order[4:] == ["slow", "quick", "quick", "slow", "slow", "quick", "quick", "slow", "slow", "quick"]
    assert ratio == 4.0
    assert taken == {"slow": 40.0, "quick": 10.0}  # medians over rounds


def ticks(calls):
    """What each call took: two to warm up, two to count, then two in every round."""
    for number, name in enumerate(calls):
        yield {"slow": 4, "quick": 1}[name] * (10 if number >= 8 else 1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_memory_is_that_of_the_call_and_not_of_what_was_there():
    program = (
        "import torch\n"
        "from measuring import extra_megabytes\n"
        "before = torch.ones(20_000_000)\n"  # 80 MB that are there already
        "print(extra_megabytes(lambda: torch.ones(10_000_000), device='cpu'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=FOLDER, capture_output=True, text=True, check=True
    )
    assert 38 < float(done.stdout) < 48  # 40 MB


def test_the_kept_tables_are_those_of_the_programs_as_they_are():
    import agreement
    from cases import CASES

    lines = (RESULTS / "attention.txt").read_text(encoding="utf8").splitlines()
    measured = [line[:62].strip() for line in lines if " / " in line]
    named = [case.what for case in CASES.values() if case.device is None]
    assert [name for name in measured if name != "the same, pages kept"] == named
    text = (RESULTS / "agreement.txt").read_text(encoding="utf8")
    for backend in agreement.BACKENDS:
        assert text.count(f"\n{backend} ") == len(agreement.DTYPES)
    ring = (RESULTS / "ring.txt").read_text(encoding="utf8")
    for part in (
        "Worst difference",
        "Peak memory",
        "Bytes that each",
        "Causal work",
        "Seconds",
        "torch's own",
    ):
        assert sum(line.startswith(part) for line in ring.splitlines()) == 1


def test_the_kept_table_along_edges_is_that_of_the_program():
    import graphs

    lines = (RESULTS / "graphs.txt").read_text(encoding="utf8").splitlines()
    kept = [(*line[:53].split(),) for line in lines if line.startswith("gat")]
    pairs = [("gat", "dense", n) for n in graphs.SIZES if n <= graphs.LARGEST_TABLE]
    pairs += [(score, f"torch-geometric {score}", n) for score in ("gat", "gatv2") for n in graphs.SIZES]
    edges = graphs.graphs.DEGREE
    assert kept == [(f"{way},", f"N={n},", f"E={n * edges}", *beside.split()) for way, beside, n in pairs]


def test_the_ways_along_edges_run():
    import graphs

    for way in ("gat", "gatv2", "dense"):
        graphs.WAYS[way](8)()
    if find_spec("torch_geometric"):
        graphs.WAYS["torch-geometric gatv2"](8)()


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_cases_for_a_gpu_run_in_the_interpreter(monkeypatch, is_causal):
    import cases

    monkeypatch.setattr(cases, "TOKENS", 128)
    monkeypatch.setattr(cases, "WIDTH", 32)
    for way, passes in (("forward", 1), ("forward and backward", 3.5)):
        calls = cases._triton(64, 16, way, is_causal, torch.float32)("cpu")
        assert list(calls) == ["triton", "FlashAttention-2", "torch"]
        for call in calls.values():
            call()
        # Two texts, two heads of 16: two products of 64 x 64 x 16 each, in multiplications and additions.
        full = passes * 2 * 2 * 2 * (2 * 64 * 64 * 16)
        assert cases._operations(64, way, is_causal) == full * (0.5 if is_causal else 1)


def test_rates_are_told_where_there_is_one():
    import attention
    import cases

    case = cases.CASES["triton-64-2048"]
    assert attention._rates(cases.CASES["additive"], [1.0, 2.0], {}) == ""
    told = attention._rates(case, [0.5, 1.0, 0.25], {attention.NARROW: 4 * case.operations / 1e9})
    tera = case.operations / 1e12
    assert told == f"; {2 * tera:.3g} / {tera:.3g} / {4 * tera:.3g} TFLOP/s, 50% of products"


@pytest.mark.parametrize("backend", ["reference", "fused", "tiled", "windowed"])
@pytest.mark.parametrize(
    ("dtype", "steps"),
    [(torch.float64, 64), (torch.float32, 64), (torch.bfloat16, 4), (torch.float16, 4)],
    ids=str,
)
def test_no_kernel_is_further_off_than_its_dtype_allows(backend, dtype, steps):
    """In steps of the dtype: some for a sum over 333 keys, few where it is float32 and rounded at the end."""
    import agreement

    errors = agreement.worst(backend, dtype, "cpu")
    assert max(errors) <= steps * torch.finfo(dtype).eps
    if (backend, dtype) != ("reference", torch.float64):  # that one is what all others are compared with
        assert min(errors) > 0


@pytest.mark.parametrize("name", ["chapter 2", "chapter 6", "chapter 9"])
def test_a_training_step_is_timed_on_a_device(name):
    import training

    work = next(make for title, make in training.WORK.items() if title.startswith(name))()
    before = [weight.clone() for weight in work.model.parameters()]
    assert training.seconds(work, torch.device("cpu"), threads=1, at_least=0.01) > 0
    assert any(not torch.equal(*pair) for pair in zip(before, work.model.parameters(), strict=True))
