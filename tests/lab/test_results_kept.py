"""What the programs in benchmarks/ kept, read from a page of the book and from a notebook that is alone."""

import subprocess

import pytest

from attention_course.lab.measure.results import kept


def test_a_page_reads_what_lies_beside_the_book(tmp_path, monkeypatch):
    (tmp_path / "book").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.txt").write_text("1 ± 0", encoding="utf8")
    monkeypatch.chdir(tmp_path / "book")
    assert kept("../results/table.txt") == "1 ± 0"
    with pytest.raises(FileNotFoundError, match=r"got '../results/other.txt'; beside it are \['table.txt'\]"):
        kept("../results/other.txt")


def test_a_notebook_that_is_alone_fetches_the_repository_once(tmp_path, monkeypatch):
    fetched = []

    def run(command, check):
        fetched.append(command[1])
        folder = tmp_path / "book" / command[-1] / "results"
        folder.mkdir(parents=True)
        (folder / "table.txt").write_text("fetched", encoding="utf8")

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "book").mkdir()
    monkeypatch.chdir(tmp_path / "book")
    assert [kept("../results/table.txt") for _ in range(2)] == ["fetched"] * 2
    assert fetched == ["clone"]
