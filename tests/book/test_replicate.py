"""Replications: what moves the seeds, which notebooks run, what the table says."""

import functools
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import replicate  # noqa: E402

DRAWS = """
import random, numpy, torch, json
from multiprocessing import get_context
generator = torch.Generator().manual_seed(3)
torch.manual_seed(3)
random.seed(3)
print(json.dumps([
    torch.randn(1, generator=generator).item(), torch.randn(1).item(), random.Random(3).random(),
    random.random(), random.choice(range(10**6)), numpy.random.default_rng(3).random(),
    random.Random("text").random(),
]))
"""


def draws(offset, source=DRAWS):
    environment = {
        **os.environ,
        "PYTHONPATH": str(replicate.SEEDS),
        "ATTENTION_COURSE_SEED_OFFSET": str(offset),
    }
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_seed_is_moved_and_only_seeds_are():
    as_written, moved = draws(0), draws(1000)
    for before, after in zip(as_written[:-1], moved[:-1], strict=True):
        assert before != after
    assert as_written[-1] == moved[-1]  # what is no number stays
    by_hand = DRAWS.replace("(3)", "(1003)")
    assert draws(0, by_hand)[:-1] == moved[:-1]


def test_all_arithmetics_are_asked_and_half_of_the_threads():
    numbers = range(1, 13)
    assert {replicate.arithmetic(number) for number in numbers} == set(replicate.ARITHMETIC)
    assert {replicate.setting(number)["OMP_NUM_THREADS"] for number in numbers} == {"1", "2"}
    offsets = {replicate.setting(number)["ATTENTION_COURSE_SEED_OFFSET"] for number in numbers}
    assert len(offsets) == 12 and "0" not in offsets


def test_notebooks_are_those_with_claims():
    names = {path.stem for path in replicate.notebooks([])}
    assert "02_score_functions" in names and "index" not in names and "replications" not in names
    assert [path.stem for path in replicate.notebooks(["02_", "07_"])] == [
        "02_score_functions",
        "07_transformer",
    ]
    with pytest.raises(ValueError, match="no notebook with claims is called 99"):
        replicate.notebooks(["02", "99"])


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A notebook with two claims, one of which other seeds break, and an assertion that one seed breaks."""
    source = """
import torch
from attention_course.lab.page.claims import Claim, claims
torch.manual_seed(0)
seed = torch.initial_seed()
claims(Claim("Seeds are small", seed / 1000, at_most=100), Claim("Seeds are zero", seed, at_most=1))
assert seed != 2000
"""
    path = tmp_path / "07_page.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    monkeypatch.setattr(replicate, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(replicate, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(replicate, "stand", functools.cache(lambda path: "digest"))
    return path


def test_claims_are_counted_and_what_is_kept_is_not_run_again(project, monkeypatch, capsys):
    assert replicate.replicate([project], count=2, numbers=[0]) == []
    found = replicate.collected([project])
    small, zero = found["07_page"]["claims"]
    assert small["numbers"] == [1.0, 2.0] and zero["numbers"] == [1000.0, 2000.0]
    assert [run["threads"] for run in found["07_page"]["runs"]] == [2, 1]
    assert [run["arithmetic"] for run in found["07_page"]["runs"]] == ["as it comes", "portable"]

    replicate.write(found)
    lines = capsys.readouterr().out.splitlines()
    (broken,) = (line for line in lines if "Seeds are zero" in line)
    (held,) = (line for line in lines if "Seeds are small" in line)
    assert lines.index(broken) < lines.index(held)  # the least sure first
    assert broken.startswith(" !held  0/ 2") and held.startswith("  held  2/ 2")
    assert any(line.strip() == "BROKE 1 of 2: cell 0: AssertionError:" for line in lines)
    assert json.loads((replicate.RESULTS / "replications.json").read_text(encoding="utf8")) == found

    monkeypatch.setattr(replicate, "started", lambda *_: pytest.fail("run again"))
    assert replicate.replicate([project], count=2, numbers=[0]) == []
    monkeypatch.setattr(replicate, "KEPT", replicate.KEPT.with_name("elsewhere"))  # another machine
    replicate.restore([project])
    assert replicate.replicate([project], count=2, numbers=[0]) == []
    assert replicate.collected([project]) == found
    monkeypatch.setattr(replicate, "stand", lambda path: "other sources")
    replicate.restore([project])
    assert replicate.collected([project]) == {}


def test_a_smaller_number_forgets_nothing(project):
    assert replicate.replicate([project], count=2, numbers=[0]) == []
    assert replicate.replicate([project], count=1, numbers=[0]) == []
    assert len(replicate.collected([project])["07_page"]["runs"]) == 2


def test_what_another_recipe_made_is_run_again(project, monkeypatch):
    assert replicate.replicate([project], count=1, numbers=[0]) == []
    monkeypatch.setattr(replicate, "arithmetic", lambda number: "portable")
    assert replicate.collected([project]) == {}
    ran = []
    monkeypatch.setattr(replicate, "started", lambda path, number, _: ran.append(number) or "")
    replicate.replicate([project], count=1, numbers=[0])
    assert ran == [1]


def test_what_was_made_while_its_sources_changed_is_not_kept(project, monkeypatch):
    stands = iter(["before", "after"])
    monkeypatch.setattr(replicate, "stand", functools.cache(lambda path: next(stands)))
    (problem,) = replicate.replicate([project], count=1, numbers=[0])
    assert problem == "07_page, replication 1: its sources changed while it ran"
    assert not list(replicate.KEPT.rglob("*.json"))


def test_one_replication_has_no_margin_yet(project):
    assert replicate.replicate([project], count=1, numbers=[0]) == []
    lines = list(replicate.table(replicate.collected([project])))
    assert sum("margin    nan" in line and line.startswith(" !") for line in lines) == 2


def test_a_claim_that_was_not_looked_at_counts_as_broken(project):
    assert replicate.replicate([project], count=2, numbers=[0]) == []
    second = replicate.place(project, 2)
    run = json.loads(second.read_text(encoding="utf8"))
    run["claims"].pop(0)
    second.write_text(json.dumps(run), encoding="utf8")
    found = replicate.collected([project])
    assert found["07_page"]["claims"][0]["numbers"] == [1.0, None]
    assert any("margin   -inf" in line and "Seeds are small" in line for line in replicate.table(found))


def test_what_fails_to_run_is_told_and_tried_again(project):
    project.write_text("no notebook", encoding="utf8")
    (problem,) = replicate.replicate([project], count=1, numbers=[0])
    assert problem.startswith("07_page, replication 1: ")
    assert not list(replicate.KEPT.rglob("*.json"))


def test_no_core_is_lent_twice_and_who_wants_more_than_there_are_gets_all():
    cores, held, seen = replicate.Cores([3, 5]), set(), []

    def borrow(wanted):
        with cores.lent(wanted) as own:
            assert len(own) == min(wanted, 2) and not held & set(own)
            held.update(own)
            seen.append(wanted)
            time.sleep(0.01)
            held.difference_update(own)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(borrow, [2, 1, 1, 3, 1, 2]))
    assert sorted(seen) == [1, 1, 1, 2, 2, 3] and sorted(cores.free) == [3, 5]


def test_notebooks_that_were_not_asked_for_keep_their_place(project, capsys):
    replicate.write({"02_other": {"stand": "a", "runs": [], "claims": []}})
    replicate.write({"07_page": {"stand": "b", "runs": [], "claims": []}})
    known = json.loads((replicate.RESULTS / "replications.json").read_text(encoding="utf8"))
    assert {name: entry["stand"] for name, entry in known.items()} == {"02_other": "a", "07_page": "b"}
