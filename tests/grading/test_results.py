"""The log of a grading run: what is written stays, what was cut off goes, nothing is guessed."""

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_course.grading import results
from attention_course.grading.results import RecordError, done, latest, merge, open_log, read, validate


def exercise(name="03.scores", status="passed", points=5, max_points=5, message="All cases agree."):
    return {"name": name, "status": status, "points": points, "max_points": max_points, "message": message}


def record(student="ada", key="0a", status="graded", seconds=1.5, **more):
    exercises = [exercise(), exercise("03.softmax", "failed", 0, 3, "Rows sum to 0.5.")]
    fields = {
        "key": key,
        "student": student,
        "assignment": "03",
        "status": status,
        "points": 5,
        "max_points": 8,
        "exercises": exercises,
        "flags": [],
        "seconds": seconds,
        "name": f"{student}/03.ipynb",
    }
    if status == "infra_error":
        fields |= {"points": None, "exercises": []}
    return fields | more


def infra(student="ada", key="0a", seconds=1.5):
    return record(student, key, "infra_error", seconds)


def filled(folder, *records):
    with open_log(folder) as log:
        for one in records:
            log.append(one)
    return folder


def logged(folder):
    return list(read(folder / results.NAME)[0])


# One record -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", results.STATUSES)
def test_every_status_makes_a_record(status):
    validate(record(status=status))


@pytest.mark.parametrize("status", results.EXERCISE_STATUSES)
def test_every_status_of_an_exercise_makes_a_record(status):
    validate(record(points=0, exercises=[exercise(status=status, points=0)]))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("key", "", "key is empty"),
        ("key", "0A", "key is '0A', not a digest"),
        ("key", "../x", "not a digest"),
        ("key", b"0a", "key is b'0a', not a str"),
        ("student", "", "student is empty"),
        ("student", 7, "student is 7, not a str"),
        ("assignment", "", "assignment is empty"),
        ("assignment", None, "assignment is None, not a str"),
        ("name", None, "name is None, not a str"),
        ("status", "passed", "status is 'passed', not one of graded"),
        ("status", ["graded"], "status is .*, not one of graded"),
        ("points", None, "points are None with the status 'graded'"),
        ("points", 9, "points are 9, expected 0 to 8"),
        ("points", -1, "points are -1, expected 0 to 8"),
        ("points", 5.0, "points are 5.0, not an int"),
        ("points", True, "points are True, not an int"),
        ("points", float("nan"), "points are nan, not an int"),
        ("points", 4, "points are 4, but those of the exercises sum to 5"),
        ("max_points", -1, "max_points are -1, expected 0 or more"),
        ("max_points", 8.0, "max_points are 8.0, not an int"),
        ("flags", "late", "flags are a str, not a list"),
        ("flags", [1], "a flag is 1, not a str"),
        ("seconds", float("nan"), "seconds are nan, not a finite number"),
        ("seconds", float("inf"), "seconds are inf, not a finite number"),
        ("seconds", -0.1, "seconds are -0.1, not a finite number"),
        ("seconds", "1", "seconds are '1', not a number"),
        ("seconds", True, "seconds are True, not a number"),
        ("exercises", (), "exercises are a tuple, not a list"),
        ("exercises", [[]], "an exercise is a list, not a dict"),
        ("exercises", [{}], "an exercise lacks .*'name'"),
        ("exercises", [exercise(), exercise()], "'03.scores' is used twice"),
        ("exercises", [exercise("")], "the exercise name '' is empty"),
        ("exercises", [exercise(3)], "an exercise's name is 3, not a str"),
        ("exercises", [exercise(status="graded")], "03.scores: status is 'graded', not one of passed"),
        ("exercises", [exercise(points=6)], "03.scores: points are 6, expected 0 to 5"),
        ("exercises", [exercise(points=None)], "03.scores: points are None, not an int"),
        ("exercises", [exercise(points=0, max_points=0.5)], "03.scores: max_points are 0.5, not an int"),
        ("exercises", [exercise(message=None)], "03.scores: message is None, not a str"),
    ],
)
def test_a_field_that_does_not_fit_is_named(field, value, words):
    with pytest.raises(RecordError, match=words):
        validate(record() | {field: value})


def test_points_belong_to_every_status_but_infra_error():
    with pytest.raises(RecordError, match="points are 0 with the status 'infra_error'"):
        validate(infra() | {"points": 0})


@pytest.mark.parametrize("status", ["timeout", "crashed", "student_error"])
def test_what_could_be_tried_counts_in_other_statuses_and_sums_up(status):
    validate(record(status=status))
    with pytest.raises(RecordError, match="sum to 5"):
        validate(record(status=status, points=8))


def test_a_record_has_all_fields_and_no_others():
    lacking = record()
    del lacking["seconds"]
    with pytest.raises(RecordError, match=r"a record lacks \['seconds'\] and has the unknown \[\]"):
        validate(lacking)
    with pytest.raises(RecordError, match=r"lacks \[\] and has the unknown \['seed'\]"):
        validate(record() | {"seed": 1})
    with pytest.raises(RecordError, match=r"an exercise lacks \[\] and has the unknown \['title'\]"):
        validate(record(exercises=[exercise() | {"title": "x"}]))
    with pytest.raises(RecordError, match="a record is a list, not a dict"):
        validate([])


# Reading --------------------------------------------------------------------------------------


def test_a_missing_file_has_no_records(tmp_path):
    assert read(tmp_path / "none.jsonl") == ((), "")


def test_what_is_appended_is_read(tmp_path):
    students = ["ada", "Zoë \N{SNOWMAN}", "\x1b[31m\n\r\x00\N{LINE SEPARATOR}", "\udcff"]
    filled(tmp_path, *map(record, students))
    assert read(tmp_path / results.NAME) == (tuple(map(record, students)), "")


def test_a_record_is_one_line_of_ascii_and_always_the_same(tmp_path):
    one = record("Zoë\n\N{LINE SEPARATOR}")
    filled(tmp_path, one, dict(reversed(one.items())))
    content = (tmp_path / results.NAME).read_bytes()
    first, second = content.splitlines()
    assert content.isascii() and content.endswith(b"\n") and content.count(b"\n") == 2
    assert first == second and b'": ' not in first and b", " not in first


def test_wherever_a_kill_cuts_the_file_the_lines_before_are_read_and_the_next_one_is_clean(tmp_path):
    filled(tmp_path, record("ada"), record("ben"))
    path = tmp_path / results.NAME
    content = path.read_bytes()
    end = content.index(b"\n") + 1
    for cut in {*range(0, len(content), 7), end - 1, end, end + 1, len(content) - 1}:
        path.write_bytes(content[:cut])
        whole = (record("ada"),) if cut >= end else ()
        records, note = read(path)
        assert records == whole
        assert bool(note) == (cut not in (0, end))
    for cut in (0, 1, end - 1, end, end + 1, len(content) - 1, len(content)):
        path.write_bytes(content[:cut])
        expected = list(read(path)[0])
        with open_log(tmp_path) as log:
            assert list(log.records) == expected
            assert bool(log.note) == (cut not in (0, end, len(content)))
            assert path.read_bytes() == content[: [0, end, len(content)][len(expected)]]
            log.append(record("cy"))
        assert read(path) == ((*expected, record("cy")), "")


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 40, b"\0" * 40 + b"\n", b'{"key":\n', b"[" * 100_000, b"\xff\n"],
    ids=["zeros", "a line of zeros", "a cut line", "brackets", "no text"],
)
def test_a_last_line_that_is_no_json_is_left_out_and_told(tmp_path, tail):
    filled(tmp_path, record())
    path = tmp_path / results.NAME
    with path.open("ab") as file:
        file.write(tail)
    records, note = read(path)
    assert records == (record(),)
    assert str(path) in note and f"{len(tail)} bytes" in note
    filled(tmp_path, record("ben"))
    assert logged(tmp_path) == [record(), record("ben")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 2 is damaged"),
        (b"", "line 2 is damaged"),
        (b"\xff", "line 2 is damaged"),
        (b"[" * 100_000, "line 2 is damaged"),
        (b"[]", "line 2 is not a record: a record is a list"),
        (json.dumps(record(points=8)).encode(), "line 2 is not a record: points are 8"),
        (json.dumps(record(seconds=float("nan"))).encode(), "line 2 is not a record: seconds are nan"),
    ],
)
def test_a_damaged_line_in_the_middle_is_named_and_nothing_is_changed(tmp_path, line, words):
    filled(tmp_path, record(), record("ben"))
    path = tmp_path / results.NAME
    first, second = path.read_bytes().splitlines()
    damaged = b"\n".join([first, line, second, b'{"cut'])
    path.write_bytes(damaged)
    with pytest.raises(RecordError, match=words):
        read(path)
    with pytest.raises(RecordError, match=words), open_log(tmp_path):
        pass
    assert path.read_bytes() == damaged


def test_a_last_line_that_is_whole_but_no_record_is_named(tmp_path):
    path = tmp_path / results.NAME
    path.write_bytes(b"{}\n")
    with pytest.raises(RecordError, match="line 1 is not a record"):
        read(path)


def test_what_is_no_file_is_named(tmp_path):
    with pytest.raises(RecordError, match="cannot be read"):
        read(tmp_path)


# Writing --------------------------------------------------------------------------------------


def test_what_is_no_record_is_not_written(tmp_path):
    with open_log(tmp_path) as log:
        with pytest.raises(RecordError, match="points are 9"):
            log.append(record(points=9))
        log.append(record())
    assert logged(tmp_path) == [record()]


def test_the_records_of_a_log_are_those_from_before(tmp_path):
    filled(tmp_path / "deep" / "new", record())
    with open_log(tmp_path / "deep" / "new") as log:
        log.append(record("ben"))
        assert log.records == (record(),)


def test_a_closed_log_takes_nothing(tmp_path):
    with open_log(tmp_path) as log:
        pass
    with pytest.raises(ValueError, match="closed"):
        log.append(record())
    assert logged(tmp_path) == []


def test_a_second_run_in_the_same_folder_is_refused_and_a_later_one_is_not(tmp_path):
    with open_log(tmp_path):
        with pytest.raises(RecordError, match=f"another run is writing to {tmp_path}"), open_log(tmp_path):
            pass
        with open_log(tmp_path / "other"):
            pass
    filled(tmp_path, record())


def test_a_child_that_lives_on_does_not_keep_the_lock_of_a_run_that_ended(tmp_path):
    with open_log(tmp_path):
        handles = [int(name) for name in os.listdir("/proc/self/fd")]
        locks = [one for one in handles if os.path.realpath(f"/proc/self/fd/{one}").endswith(results.LOCK)]
        kept = os.dup(*locks)  # what a forked child has
    try:
        filled(tmp_path, record())
    finally:
        os.close(kept)


def test_the_lock_is_released_when_the_run_fails(tmp_path):
    with pytest.raises(ZeroDivisionError), open_log(tmp_path):
        raise ZeroDivisionError
    filled(tmp_path, record())


@pytest.fixture
def calls(monkeypatch):
    """What reaches the disk, in order: writes, cuts and syncs, with whether it was to a folder."""
    seen = []

    def spy(name):
        function = getattr(os, name)

        def noted(handle, *rest):
            seen.append((name, os.path.realpath(f"/proc/self/fd/{handle}")))
            return function(handle, *rest)

        monkeypatch.setattr(os, name, noted)

    for name in ("write", "fsync", "ftruncate"):
        spy(name)
    return seen


def test_each_record_is_one_write_and_is_synced(tmp_path, calls):
    path = str(tmp_path / results.NAME)
    with open_log(tmp_path) as log:
        calls.clear()
        log.append(record())
        assert calls == [("write", path), ("fsync", path)]
        log.append(record("ben"))
        assert calls == [("write", path), ("fsync", path)] * 2


def test_a_new_file_and_its_folder_are_synced_and_a_torn_tail_is_cut_before(tmp_path, calls):
    folder = tmp_path / "new"
    path = folder / results.NAME
    filled(folder)
    assert calls == [("fsync", str(path)), ("fsync", str(folder)), ("fsync", str(tmp_path))]
    path.write_bytes(b"{")
    calls.clear()
    filled(folder)
    assert calls[:2] == [("ftruncate", str(path)), ("fsync", str(path))]


def test_the_log_is_opened_for_appending_only(tmp_path):
    import fcntl

    with open_log(tmp_path) as log:
        flags = fcntl.fcntl(log.file, fcntl.F_GETFL)
        assert flags & os.O_APPEND and flags & os.O_ACCMODE == os.O_WRONLY
        assert not os.get_inheritable(log.file.fileno())
        (tmp_path / results.NAME).write_bytes(b"")  # somebody else's doing: no hole is left
        log.append(record())
    assert logged(tmp_path) == [record()]


def test_a_full_disk_raises_and_leaves_no_half_line(tmp_path):
    filled(tmp_path, record())
    path = tmp_path / results.NAME
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with open_log(tmp_path) as log:
        for room in (10, 0):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
            try:
                with pytest.raises(OSError) as raised:
                    log.append(record("ben"))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert raised.value.errno == (errno.ENOSPC if room else errno.EFBIG)
            assert path.read_bytes() == before
        log.append(record("ben"))
    assert logged(tmp_path) == [record(), record("ben")]


@pytest.mark.parametrize("stop", [OSError(errno.EIO, "no"), KeyboardInterrupt()])
def test_what_could_not_be_synced_is_not_in_the_log(tmp_path, monkeypatch, stop):
    with open_log(tmp_path) as log:

        def fail(handle):
            raise stop

        with monkeypatch.context() as patched, pytest.raises(type(stop)):
            patched.setattr(os, "fsync", fail)
            log.append(record())
        log.append(record("ben"))
    assert logged(tmp_path) == [record("ben")]


KILLED = """
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("results", sys.argv[1])
results = sys.modules["results"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(results)
record = json.loads(sys.argv[3])
with results.open_log(Path(sys.argv[2])) as log:
    for number in range(10**9):
        log.append({**record, "student": f"s{number}"})
        print(number, flush=True)
"""


def test_a_killed_run_keeps_every_record_it_was_done_with_and_lets_go_of_the_lock(tmp_path):
    command = [sys.executable, "-c", KILLED, results.__file__, str(tmp_path), json.dumps(record())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        for _ in range(20):
            run.stdout.readline()
        run.send_signal(signal.SIGKILL)
        counted = [20 - 1, *map(int, run.stdout.read().split("\n")[:-1])][-1]
    with open_log(tmp_path) as log:
        students = [one["student"] for one in log.records]
    assert students == [f"s{number}" for number in range(len(students))]
    assert len(students) in (counted + 1, counted + 2)


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path, monkeypatch, calls):
    path = tmp_path / ("x" * 250)
    results.replace(path, b"one")
    assert path.read_bytes() == b"one"
    assert [name for name, _ in calls] == ["fsync", "fsync"]
    assert calls[0][1].endswith(".part") and calls[1][1] == str(tmp_path)
    mode = stat.S_IMODE(path.stat().st_mode)
    (tmp_path / "plain").write_bytes(b"")
    assert mode == stat.S_IMODE((tmp_path / "plain").stat().st_mode)

    def fail(handle):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        results.replace(path, b"two")
    assert path.read_bytes() == b"one"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["plain", path.name]


# What the records amount to -------------------------------------------------------------------


def test_the_latest_record_of_each_student_counts():
    records = [record("ada", "0a"), record("ben", "0b"), record("ada", "0c")]
    assert latest(records) == {"ada": records[2], "ben": records[1]}
    assert latest([]) == {}


def test_infra_errors_are_tried_again_and_nothing_else_is():
    records = [record(status, f"{number:02x}", status) for number, status in enumerate(results.STATUSES)]
    assert done(records) == {
        (one["student"], one["key"]) for one in records if one["status"] != "infra_error"
    }
    assert done([infra(), record()]) == {("ada", "0a")} == done([record(), infra()])


# Shards ---------------------------------------------------------------------------------------


def test_shards_become_one_log_whatever_their_order(tmp_path):
    one = filled(tmp_path / "1", record("cy"), record("ada", "0a"), record("ada", "01"))
    two = filled(tmp_path / "2", record("ben"), record("cy"))
    empty = filled(tmp_path / "3")
    assert merge([one, two, empty], tmp_path / "out") == ()
    assert merge([empty, two, one], tmp_path / "back") == ()
    expected = [record("ada", "0a"), record("ada", "01"), record("ben"), record("cy")]
    assert logged(tmp_path / "out") == logged(tmp_path / "back") == expected


verdicts = st.lists(
    st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 2)), max_size=5
)  # student, whether it stands, seconds: one submission each


@settings(max_examples=30)
@given(shards=st.lists(verdicts, min_size=1, max_size=3), data=st.data())
def test_merging_loses_nothing_repeats_nothing_and_knows_no_order(tmp_path_factory, shards, data):
    root = tmp_path_factory.mktemp("merge")
    folders = []
    for number, shard in enumerate(shards):
        records = [
            (record if stands else infra)(student, seconds=seconds) for student, stands, seconds in shard
        ]
        records.sort(key=lambda one: one["status"] == "graded")  # what stands is not tried again
        folders.append(root / str(number))
        folders[-1].mkdir()
        text = "".join(json.dumps(one) + "\n" for one in records)
        (folders[-1] / results.NAME).write_text(text)
    merge(folders, root / "out")
    merge(data.draw(st.permutations(folders)), root / "other")
    merged = logged(root / "out")
    assert logged(root / "other") == merged
    assert [one["student"] for one in merged] == sorted(one["student"] for one in merged)
    everything = {json.dumps(one, sort_keys=True) for folder in folders for one in logged(folder)}
    assert sorted(json.dumps(one, sort_keys=True) for one in merged) == sorted(everything)
    assert {s for s, _ in done(merged)} == {
        s for s, one in latest(merged).items() if one["points"] is not None
    }


def test_an_infra_error_in_one_shard_never_hides_a_verdict_in_another(tmp_path):
    tried = infra() | {"exercises": [exercise("03.z", "crashed", 0)]}  # in every other order it comes last
    one, two = filled(tmp_path / "1", record()), filled(tmp_path / "2", tried)
    for order in ([one, two], [two, one]):
        assert merge(order, tmp_path / "out") == ()
        assert logged(tmp_path / "out") == [tried, record()]


def test_within_one_shard_a_students_records_keep_their_order(tmp_path):
    records = [record(key="0c"), record(key="0b"), record(key="0c"), record(key="0a")]
    one, two = filled(tmp_path / "1", *records), filled(tmp_path / "2", record("ben"))
    assert merge([one, two], tmp_path / "out") == ()
    assert logged(tmp_path / "out") == [*records[1:], record("ben")]


def test_different_submissions_in_different_shards_go_by_the_order_of_the_folders_and_are_told(tmp_path):
    one, two = filled(tmp_path / "1", record(key="0a")), filled(tmp_path / "2", record(key="0b"))
    (note,) = merge([one, two], tmp_path / "out")
    assert "'ada'" in note and "order of the folders" in note
    assert latest(logged(tmp_path / "out"))["ada"]["key"] == "0b"
    merge([two, one], tmp_path / "back")
    assert latest(logged(tmp_path / "back"))["ada"]["key"] == "0a"


def test_two_verdicts_on_one_submission_are_refused_with_both_folders(tmp_path):
    one = filled(tmp_path / "1", record())
    two = filled(tmp_path / "2", record(seconds=9.0, flags=["late"]))
    for order in ([one, two], [two, one]):
        with pytest.raises(RecordError, match=r"'ada'.*they differ in flags$") as raised:
            merge(order, tmp_path / "out")
        assert str(one) in str(raised.value) and str(two) in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_seconds_alone_make_no_other_verdict(tmp_path):
    one, two = filled(tmp_path / "1", record(seconds=2.0)), filled(tmp_path / "2", record(seconds=1.0))
    merge([one, two], tmp_path / "out")
    assert logged(tmp_path / "out") == [record(seconds=1.0), record(seconds=2.0)]


def test_different_assignments_are_not_merged(tmp_path):
    one, two = filled(tmp_path / "1", record()), filled(tmp_path / "2", record("ben", assignment="04"))
    with pytest.raises(RecordError, match=r"different assignments: '03' in .*/1, '04' in .*/2"):
        merge([one, two], tmp_path / "out")


def test_the_result_of_merging_has_a_folder_of_its_own(tmp_path):
    one = filled(tmp_path / "1", record())
    (tmp_path / "link").symlink_to(one)
    for out in (one, tmp_path / "x" / ".." / "1", tmp_path / "link"):
        with pytest.raises(RecordError, match="is one of the folders"):
            merge([one], out)
    assert logged(one) == [record()]


def test_merging_again_adds_and_never_loses(tmp_path):
    one, two = filled(tmp_path / "1", record()), filled(tmp_path / "2", record("ben"))
    out = tmp_path / "out"
    merge([one], out)
    merge([one, two], out)
    assert logged(out) == [record(), record("ben")]
    with pytest.raises(RecordError, match="holds 1 records that none of the folders has"):
        merge([one], out)
    assert logged(out) == [record(), record("ben")]


def test_merging_waits_for_no_run_and_disturbs_none(tmp_path):
    one = filled(tmp_path / "1", record())
    with open_log(tmp_path / "out"), pytest.raises(RecordError, match="another run is writing"):
        merge([one], tmp_path / "out")


def test_a_failed_merge_leaves_the_earlier_one(tmp_path, monkeypatch):
    one, two = filled(tmp_path / "1", record()), filled(tmp_path / "2", record("ben"))
    merge([one], tmp_path / "out")

    def fail(path, target):
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError):
        merge([one, two], tmp_path / "out")
    assert logged(tmp_path / "out") == [record()]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [results.LOCK, results.NAME]


def test_a_folder_without_a_log_is_named_and_so_is_what_was_cut_off(tmp_path):
    with pytest.raises(RecordError, match="no folders"):
        merge([], tmp_path / "out")
    with pytest.raises(RecordError, match=r"/none has no results\.jsonl"):
        merge([tmp_path / "none"], tmp_path / "out")
    one = filled(tmp_path / "1", record())
    with (one / results.NAME).open("ab") as file:
        file.write(b"{")
    (note,) = merge([one], tmp_path / "out")
    assert "cut off" in note and str(one) in note
    assert logged(tmp_path / "out") == [record()]
