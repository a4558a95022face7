"""What was handed in, found among what strangers can put into a folder or a zip."""

import os
import random
import socket
import stat
import struct
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from attention_course.grading import submissions
from attention_course.grading.submissions import (
    NOTEBOOK_BYTES,
    Problem,
    SubmissionsError,
    open_source,
    safe_name,
)

ASSIGNMENT = "05_masks"


def fill(folder, *paths, time=1_600_000_000):
    """Write a file at each path, its content the path; a path that ends in a slash is a folder."""
    for path in paths:
        place = folder / path
        (place if path.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            place.write_text(path)
            os.utime(place, (time, time))
    return folder


def zipped(path, members, **more):
    """A zip of members, each a name and content, in the order given."""
    with zipfile.ZipFile(path, "w", **more) as archive:
        for name, content in members:
            info = name if isinstance(name, zipfile.ZipInfo) else member(name)
            archive.writestr(info, content)
    return path


def member(name, time=(2020, 1, 1, 0, 0, 0), mode=None, method=zipfile.ZIP_DEFLATED):
    info = zipfile.ZipInfo("x", time)
    info.filename = info.orig_filename = name  # as it is: the constructor tidies names up
    info.compress_type = method
    info.external_attr = 0 if mode is None else mode << 16
    return info


def in_zip(path, *names):
    """The same as ``fill``, in a zip."""
    return zipped(path, [(name, "" if name.endswith("/") else name) for name in names])


def found(source, assignment=ASSIGNMENT):
    """Every submission by student: its content, or the problem's status."""
    with open_source(source, assignment) as opened:
        contents = [(one.student, opened.read(one)) for one in opened.submissions]
    students = [student for student, _ in contents]
    assert students == sorted(set(students))
    return {student: was.status if isinstance(was, Problem) else was.decode() for student, was in contents}


def only(source, assignment=ASSIGNMENT):
    """The one submission there, and what reading it gives."""
    with open_source(source, assignment) as opened:
        [one] = opened.submissions
        return one, opened.read(one)


def place(tmp_path, kind, *paths):
    if kind == "folder":
        return fill(tmp_path / "handed_in", *paths)
    return in_zip(tmp_path / "handed_in.zip", *paths)


both = pytest.mark.parametrize("kind", ["folder", "zip"])


# Where notebooks lie --------------------------------------------------------------------------


@both
def test_the_three_arrangements_are_read_side_by_side(tmp_path, kind):
    paths = ("alice.ipynb", "bob/whatever.IPYNB", f"carol/{ASSIGNMENT}/masks.ipynb")
    source = place(tmp_path, kind, *paths)
    assert found(source) == dict(zip(("alice", "bob", "carol"), paths, strict=True))
    with open_source(source, ASSIGNMENT) as opened:
        assert [(one.student, one.name) for one in opened.submissions] == list(
            zip(("alice", "bob", "carol"), paths, strict=True)
        )
        assert all(one.problem is None and one.flags == () for one in opened.submissions)


@both
def test_of_several_assignments_only_the_one_asked_for_is_taken(tmp_path, kind):
    paths = (
        "alice/04_multi_head/a.ipynb",
        "alice/05_masks/b.ipynb",
        "bob/04_multi_head/c.ipynb",
        "carol/05_masks/",
    )
    source = place(tmp_path, kind, *paths)
    assert found(source) == {
        "alice": "alice/05_masks/b.ipynb",
        "bob": "student_error",
        "carol": "student_error",
    }
    with open_source(source, ASSIGNMENT) as opened:
        [_, bob, carol] = opened.submissions
    assert bob.problem.message == "For “bob”, no notebook of 05_masks was found."
    assert carol.problem.message == "For “carol”, no notebook of 05_masks was found."


@both
def test_a_student_without_a_notebook_is_not_lost(tmp_path, kind):
    paths = (
        "alice/",
        "bob/notes.txt",
        "carol/answers.zip",
        "dan.zip",
        f"eve/{ASSIGNMENT}/deeper/still/a.ipynb",
    )
    source = place(tmp_path, kind, *paths, "readme.txt")
    assert found(source) == dict.fromkeys(("alice", "bob", "carol", "dan", "eve"), "student_error")
    with open_source(source, ASSIGNMENT) as opened:
        [alice, _, carol, dan, eve] = opened.submissions
    assert alice.problem.message == "For “alice”, no notebook was found."
    assert carol.problem.message == "For “carol”, no notebook was found; a zip among the files is not opened."
    assert dan.problem.message == "For “dan”, no notebook was found; a zip among the files is not opened."
    assert eve.problem.message == "For “eve”, no notebook of 05_masks was found."


@both
def test_a_folder_named_like_a_notebook_is_none(tmp_path, kind):
    assert found(place(tmp_path, kind, "a/b.ipynb/", "c.ipynb")) == {"a": "student_error", "c": "c.ipynb"}


@both
def test_hidden_files_are_ignored(tmp_path, kind):
    source = place(
        tmp_path,
        kind,
        "alice/a.ipynb",
        "alice/.ipynb_checkpoints/a-checkpoint.ipynb",
        "alice/.b.ipynb",
        ".ipynb_checkpoints/c.ipynb",
        "__MACOSX/alice/._a.ipynb",
        ".d.ipynb",
        "bob.ipynb",
    )
    assert found(source) == {"alice": "alice/a.ipynb", "bob": "bob.ipynb"}


def test_names_that_differ_in_case_or_normal_form_are_two_students(tmp_path):
    names = ["Alice", "alice", "Jörg", "Jo\u0308rg"]
    source = in_zip(tmp_path / "a.zip", *(f"{name}.ipynb" for name in names))
    assert found(source) == {name: f"{name}.ipynb" for name in names}


@pytest.mark.parametrize(
    "names",
    [
        ("alice.ipynb", "bob.ipynb"),
        ("alice/a.ipynb", "bob.ipynb"),
        ("alice/05_masks/a.ipynb", "bob/04_multi_head/a.ipynb"),
        ("alice.ipynb", "05_masks.ipynb"),
    ],
)
def test_a_top_folder_in_a_zip_is_seen_through(tmp_path, names):
    plain = found(in_zip(tmp_path / "a.zip", *names))
    wrapped = in_zip(tmp_path / "b.zip", "all/", "__MACOSX/._x", *(f"all/{name}" for name in names))
    assert found(wrapped) == {
        student: was if was == "student_error" else f"all/{was}" for student, was in plain.items()
    }
    with open_source(wrapped, ASSIGNMENT) as opened:
        assert all(one.name.startswith("all/") for one in opened.submissions)


@pytest.mark.parametrize("name", ["alice/05_masks.ipynb", "alice/05_masks/a.ipynb"])
def test_a_zip_of_one_students_folder_is_that_students(tmp_path, name):
    assert found(in_zip(tmp_path / "a.zip", name)) == {"alice": name}
    beside = in_zip(tmp_path / "b.zip", "alice/04_multi_head/a.ipynb", "alice/05_masks/")
    assert found(beside) == {"alice": "student_error"}


def test_a_top_folder_in_a_folder_is_a_student(tmp_path):
    assert found(fill(tmp_path, "alice/hw.ipynb")) == {"alice": "alice/hw.ipynb"}
    assert found(in_zip(tmp_path / "a.zip", "alice/hw.ipynb")) == {"hw": "alice/hw.ipynb"}


# Several ----------------------------------------------------------------------------------------


def test_the_newest_of_several_files_is_taken_and_flagged(tmp_path):
    fill(tmp_path, "alice.ipynb", "alice/05_masks/new.ipynb", "bob.ipynb")
    fill(tmp_path, "alice/new.ipynb", time=1_700_000_000)
    assert found(tmp_path) == {"alice": "alice/new.ipynb", "bob": "bob.ipynb"}
    with open_source(tmp_path, ASSIGNMENT) as opened:
        alice, bob = opened.submissions
    assert alice.flags == ("3 notebooks; the newest, alice/new.ipynb, was graded",)
    assert alice.name == "alice/new.ipynb"
    assert bob.flags == ()


def test_the_newest_of_several_members_is_taken_and_flagged(tmp_path):
    names = [member("b/a.ipynb"), member("b/b.ipynb", (2021, 1, 1, 0, 0, 0)), member("a.ipynb")]
    source = zipped(tmp_path / "a.zip", [(name, name.filename) for name in names])
    assert found(source) == {"a": "a.ipynb", "b": "b/b.ipynb"}
    with open_source(source, ASSIGNMENT) as opened:
        assert opened.submissions[1].flags == ("2 notebooks; the newest, b/b.ipynb, was graded",)


@both
def test_a_tie_is_refused_by_name(tmp_path, kind):
    one, was = only(place(tmp_path, kind, "a.ipynb", "a/1.ipynb", "a/2.ipynb", "a/3.ipynb", "a/4.ipynb"))
    assert was == one.problem
    assert was == Problem(
        "refused",
        "5 notebooks are equally new, hand in one only: a/1.ipynb, a/2.ipynb, a/3.ipynb and 2 more.",
    )


@both
def test_a_timestamp_beside_the_notebook_is_a_flag(tmp_path, kind):
    names = (
        "a/05_masks/a.ipynb",
        "a/05_masks/timestamp.txt",
        "b/b.ipynb",
        "b/05_masks/timestamp.txt",
        "timestamp.txt",
    )
    with open_source(place(tmp_path, kind, *names, "c.ipynb"), ASSIGNMENT) as opened:
        assert [one.flags for one in opened.submissions] == [("submitted a/05_masks/timestamp.txt",), (), ()]


@pytest.mark.parametrize(
    ("content", "flags"),
    [
        (b"2026-01-31 23:59:59 UTC\n", ("submitted 2026-01-31 23:59:59 UTC",)),
        (b"\x1b[31m\xff" + b"x" * 1000, ("submitted [31m\ufffd" + "x" * 59,)),
        (b" \n\0", ()),
        (b"x" * 1_000_001, ()),
    ],
)
def test_a_timestamp_is_short_and_printable(tmp_path, content, flags):
    fill(tmp_path, "a/a.ipynb")
    (tmp_path / "a" / "timestamp.txt").write_bytes(content)
    assert only(tmp_path)[0].flags == flags


# Names ------------------------------------------------------------------------------------------

UNSAFE = {
    "a\nb": "The name “a b” holds control characters.",
    "a\x1b[31m": "The name “a?[31m” holds control characters.",
    "a\u2028b": "The name “a b” holds control characters.",
    "a" * 201: f"The name “{'a' * 99}…” is 201 bytes long, more than 200.",
    "ä" * 101: f"The name “{'ä' * 99}…” is 202 bytes long, more than 200.",
    "a\\b": "The name “a\\b” holds a slash.",
}


@pytest.mark.parametrize(("name", "message"), UNSAFE.items(), ids=range(len(UNSAFE)))
def test_an_unsafe_name_is_refused_under_a_cleaned_one(tmp_path, name, message):
    fill(tmp_path, f"{name}/a.ipynb", "bob.ipynb")
    with open_source(tmp_path, ASSIGNMENT) as opened:
        refused = next(one for one in opened.submissions if one.student != "bob")
    assert refused.student == safe_name(name)
    assert refused.problem == Problem("refused", message)
    assert refused.name.isprintable()
    assert found(tmp_path) == {safe_name(name): "refused", "bob": "bob.ipynb"}


def test_a_name_that_is_no_text_is_refused(tmp_path):
    (tmp_path / os.fsdecode(b"a\xff.ipynb")).write_text("")
    one, _ = only(tmp_path)
    assert one.problem == Problem("refused", "The name “a?” holds control characters.")
    f"{one.student} {one.name}".encode()


def test_a_cleaned_name_does_not_displace_the_student_who_has_it(tmp_path):
    cleaned = safe_name("a\nb")
    fill(tmp_path, "a\nb.ipynb", f"{cleaned}.ipynb")
    assert found(tmp_path) == {cleaned: f"{cleaned}.ipynb", f"{cleaned}~": "refused"}


@pytest.mark.parametrize("student", ["alice", "a.b-c_d", "student07", "0", "alice_"[:-1]])
def test_a_plain_name_is_its_own_safe_name(student):
    assert safe_name(student) == student


def test_a_safe_name_keeps_what_it_can():
    assert safe_name("Jo\u0308rg 1").rsplit("-", 1)[0] == "Jörg_1"


def test_safe_names_are_safe_and_never_meet():
    names = [
        "alice",
        "Alice",
        "ALICE",
        "straße",
        "strasse",
        "Jörg",
        "Jo\u0308rg",
        "a b",
        "a_b",
        "a\tb",
        "",
        ".",
        "..",
    ]
    names += [
        "../a",
        "a",
        "-rf",
        "-",
        "_",
        "a.",
        ".a",
        "a" * 300,
        "a" * 301,
        "😀",
        "\ud800",
        "?",
        "<b>",
        "e" * 16,
        "a/b",
    ]
    names += [safe_name(name) for name in names if safe_name(name) != name]
    names += [safe_name(name) for name in names if safe_name(name) != name]
    safe = [safe_name(name) for name in dict.fromkeys(names)]
    assert len({one.casefold() for one in safe}) == len(safe)
    for one in safe:
        assert one and one == os.path.basename(one) and len(one.encode()) < 230
        assert one[0] not in ".-" and one[-1] not in ". " and one.replace(" ", "").isprintable()
        assert all(letter.isalnum() or letter in "._-" for letter in one)


# Links and other things in a folder ---------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    return fill(tmp_path / "outside", "secret.ipynb", "05_masks/secret.ipynb")


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("alice.ipynb", "secret.ipynb"),
        ("alice", ""),
        ("alice/a.ipynb", "secret.ipynb"),
        ("alice/data.csv", "secret.ipynb"),
        ("alice/05_masks", "05_masks"),
        ("alice/05_masks/a.ipynb", "secret.ipynb"),
        ("alice/loop.ipynb", "../handed_in/alice/loop.ipynb"),
        ("alice/gone.ipynb", "gone"),
    ],
)
def test_links_are_refused_and_never_followed(tmp_path, outside, link, target):
    source = fill(tmp_path / "handed_in", "bob.ipynb")
    (source / link).parent.mkdir(parents=True, exist_ok=True)
    (source / link).symlink_to(outside / target)
    assert found(source) == {"alice": "refused", "bob": "bob.ipynb"}
    with open_source(source, ASSIGNMENT) as opened:
        assert opened.submissions[0].problem == Problem(
            "refused", f"{link} is a link, and links are not followed."
        )


def test_hidden_links_are_ignored(tmp_path, outside):
    source = fill(tmp_path / "handed_in", "alice/a.ipynb")
    (source / "alice" / ".ipynb_checkpoints").symlink_to(outside)
    assert found(source) == {"alice": "alice/a.ipynb"}


def test_a_pipe_and_a_socket_are_refused(tmp_path):
    source = fill(tmp_path / "s", "bob.ipynb")
    os.mkfifo(source / "alice.ipynb")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(source / "carol.ipynb"))
        assert found(source) == {"alice": "refused", "bob": "bob.ipynb", "carol": "refused"}
        with open_source(source, ASSIGNMENT) as opened:
            alice = opened.submissions[0]
    assert alice.problem == Problem("refused", "alice.ipynb is neither a file nor a folder.")


def swap(path, make):
    path.rename(path.with_name("away"))
    make(path)


@pytest.mark.parametrize("swapped", ["alice/05_masks/a.ipynb", "alice/05_masks", "alice"])
def test_what_becomes_a_link_after_it_was_found_is_not_followed(tmp_path, swapped):
    source = fill(tmp_path / "handed_in", "alice/05_masks/a.ipynb", "bob.ipynb")
    fill(tmp_path / "outside", "alice/05_masks/a.ipynb")
    with open_source(source, ASSIGNMENT) as opened:
        alice, bob = opened.submissions
        swap(source / swapped, lambda path: path.symlink_to(tmp_path / "outside" / swapped))
        assert opened.read(alice) == Problem(
            "refused", "alice/05_masks/a.ipynb is a link, and links are not followed."
        )
        assert opened.read(bob) == b"bob.ipynb"


def test_a_folder_that_becomes_a_link_while_it_is_listed_is_not_followed(tmp_path, outside, monkeypatch):
    source = fill(tmp_path / "handed_in", "alice/", "bob.ipynb")
    listed = submissions._listed

    def late(root, parts, limit):
        if parts == ("alice",):
            (source / "alice").rmdir()
            (source / "alice").symlink_to(outside)
        return listed(root, parts, limit)

    monkeypatch.setattr(submissions, "_listed", late)
    assert found(source) == {"alice": "refused", "bob": "bob.ipynb"}


def test_what_becomes_a_pipe_or_large_after_it_was_found_does_no_harm(tmp_path):
    source = fill(tmp_path, "a.ipynb", "b.ipynb", "c.ipynb", "d.ipynb")
    with open_source(source, ASSIGNMENT) as opened:
        a, b, c, d = opened.submissions
        swap(source / "a.ipynb", os.mkfifo)
        os.truncate(source / "b.ipynb", NOTEBOOK_BYTES + 1)
        (source / "c.ipynb").unlink()
        assert opened.read(a) == Problem("refused", "a.ipynb is neither a file nor a folder.")
        assert opened.read(b).status == "oversize"
        assert opened.read(c) == Problem(
            "infra_error", "c.ipynb could not be read: No such file or directory."
        )
        assert opened.read(d) == b"d.ipynb"


def test_a_file_that_goes_while_a_folder_is_listed_is_left_out(tmp_path, monkeypatch):
    scandir = os.scandir

    class Gone:
        name = "gone.ipynb"

        def stat(self, follow_symlinks):
            raise FileNotFoundError

    @contextmanager
    def with_one_gone(handle):
        with scandir(handle) as entries:
            yield iter([Gone(), *entries])

    monkeypatch.setattr(submissions.os, "scandir", with_one_gone)
    assert found(fill(tmp_path, "alice.ipynb")) == {"alice": "alice.ipynb"}


def test_of_a_large_file_no_more_is_read_than_tells_so(tmp_path, monkeypatch):
    fill(tmp_path, "alice.ipynb", "bob.ipynb")
    os.truncate(tmp_path / "alice.ipynb", 500_000_000)
    os.truncate(tmp_path / "bob.ipynb", NOTEBOOK_BYTES)
    asked = []

    class Spy:
        def __init__(self, *args, **more):
            self.file = open(*args, **more)  # noqa: SIM115

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def read(self, size=-1):
            asked.append(size)
            return self.file.read(size)

    monkeypatch.setattr(submissions, "open", Spy, raising=False)
    with open_source(tmp_path, ASSIGNMENT) as opened:
        alice, bob = opened.submissions
        assert opened.read(alice) == Problem(
            "oversize", "The notebook has 500,000,000 bytes; 20,000,000 bytes is the most allowed."
        )
        assert len(opened.read(bob)) == NOTEBOOK_BYTES
    assert asked == [NOTEBOOK_BYTES + 1] * 2


def test_a_file_that_grows_while_it_is_read_is_oversize(tmp_path, monkeypatch):
    fill(tmp_path, "alice.ipynb")
    monkeypatch.setattr(submissions, "NOTEBOOK_BYTES", 10)
    fstat = os.fstat

    def early(handle):
        status = list(fstat(handle))
        status[6] = min(status[6], 10)
        return os.stat_result(status)

    monkeypatch.setattr(submissions.os, "fstat", early)
    assert only(tmp_path)[1] == Problem(
        "oversize", "The notebook is larger than it says; 10 bytes is the most allowed."
    )


@pytest.mark.parametrize("refused", ["alice", "05_masks", "a.ipynb"])
def test_what_may_not_be_read_is_the_graders_trouble(tmp_path, monkeypatch, refused):
    fill(tmp_path, "alice/05_masks/a.ipynb", "bob.ipynb")
    opening = os.open

    def refuse(path, *args, **more):  # root may read everything, so permissions would not do
        if path == refused:
            raise PermissionError(13, "Permission denied", path)
        return opening(path, *args, **more)

    monkeypatch.setattr(submissions.os, "open", refuse)
    assert found(tmp_path) == {"alice": "infra_error", "bob": "bob.ipynb"}


def test_a_crowded_folder_is_refused_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MAX_FILES", 3)
    fill(tmp_path, *(f"alice/{n}.ipynb" for n in range(4)), *(f"bob/{n}" for n in "123"), "carol.ipynb")
    fill(tmp_path, *(f"dan/05_masks/{n}" for n in range(4)))
    assert found(tmp_path) == {
        "alice": "refused",
        "bob": "student_error",
        "carol": "carol.ipynb",
        "dan": "refused",
    }
    with open_source(tmp_path, ASSIGNMENT) as opened:
        assert opened.submissions[0].problem.message == "alice holds more than 3 files and folders."


def test_of_a_crowded_folder_no_more_is_listed_than_tells_so(tmp_path, monkeypatch):
    scandir, taken = os.scandir, []

    @contextmanager
    def counted(handle):
        with scandir(handle) as entries:
            yield (taken.append(entry) or entry for entry in entries)

    monkeypatch.setattr(submissions, "MAX_FILES", 3)
    monkeypatch.setattr(submissions.os, "scandir", counted)
    assert found(fill(tmp_path, *(f"alice/{n}.ipynb" for n in range(9)))) == {"alice": "refused"}
    assert len(taken) == 1 + 4


def test_everything_is_closed_afterwards(tmp_path):
    folder, archive = (
        place(tmp_path, "folder", "a/05_masks/a.ipynb"),
        place(tmp_path, "zip", "a.ipynb", "b.ipynb"),
    )
    before = os.listdir("/dev/fd")
    for source in (folder, archive):
        found(source)
    with pytest.raises(SubmissionsError):
        found(fill(tmp_path / "none", "x.txt"))
    assert len(os.listdir("/dev/fd")) == len(before)


# What is no source ----------------------------------------------------------------------------


def refused_as_a_whole(path):
    with pytest.raises(SubmissionsError) as caught:
        found(path)
    assert str(path) in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def test_a_place_that_is_not_there_is_named(tmp_path):
    assert (
        refused_as_a_whole(tmp_path / "x")
        == ": No such file or directory; expected a folder or a zip of notebooks"
    )


def test_a_file_that_is_no_zip_is_named(tmp_path):
    fill(tmp_path, "a.ipynb", "b.zip")
    (tmp_path / "empty.zip").write_bytes(b"")
    for name in ("a.ipynb", "b.zip", "empty.zip"):
        refusal = refused_as_a_whole(tmp_path / name)
        assert refusal == " is neither a folder nor a zip that can be read: it has no directory at its end"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused_as_a_whole(tmp_path / "pipe") == " is neither a folder nor a zip of notebooks"


@both
def test_a_place_without_submissions_says_what_was_expected(tmp_path, kind):
    assert refused_as_a_whole(place(tmp_path, kind, "readme.txt", ".x.ipynb", "__MACOSX/a.ipynb")) == (
        " holds no submission: expected STUDENT.ipynb, STUDENT/NOTEBOOK.ipynb or "
        "STUDENT/05_masks/NOTEBOOK.ipynb"
    )


def test_an_unreadable_folder_is_named(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(submissions.os, "scandir", refuse)
    assert refused_as_a_whole(fill(tmp_path, "a.ipynb")) == " cannot be read: Permission denied"


def test_too_many_entries_are_refused_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MAX_MEMBERS", 3)
    names = [f"{n}.ipynb" for n in range(4)]
    assert refused_as_a_whole(fill(tmp_path / "a", *names)) == " holds more than 3 files and folders"
    assert len(found(fill(tmp_path / "b", *names[:3]))) == 3
    made = []
    monkeypatch.setattr(submissions.zipfile, "ZipFile", Spy(zipfile.ZipFile, made))
    assert refused_as_a_whole(in_zip(tmp_path / "a.zip", *names)) == " holds more than 3 members"
    assert made == ["w"]  # opened to be written, and not to be read: that would take memory for each member
    assert len(found(in_zip(tmp_path / "b.zip", *names[:3]))) == 3


class Spy:
    def __init__(self, made, calls):
        self.made, self.calls = made, calls

    def __call__(self, file, mode="r", **more):
        self.calls.append(mode)
        return self.made(file, mode, **more)


# Zips -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "../bob.ipynb",
        "/bob.ipynb",
        "/etc/passwd",
        "C:\\bob.ipynb",
        "C:bob.ipynb",
        "C:/bob.ipynb",
        "bob\\x.ipynb",
        "..",
        "a\0.ipynb",
        "",
    ],
)
def test_a_member_that_leads_elsewhere_is_refused_under_a_name_of_its_own(tmp_path, name):
    source = zipped(tmp_path / "a.zip", [("bob.ipynb", "bob"), (name, "evil"), ("a.ipynb", "a")])
    got = found(source)
    assert got.pop("bob") == "bob"
    assert got.pop("a") == "a"
    assert got == {name if name == "C:bob.ipynb" else safe_name(name): "refused"}
    with open_source(source, ASSIGNMENT) as opened:
        [refused] = [one for one in opened.submissions if one.problem]
    problem = refused.problem
    assert refused.name.isprintable() or not name
    assert problem.message.endswith("has a name that leads elsewhere.")
    assert problem.message.isprintable()


@pytest.mark.parametrize("wrapper", ["", "all/"])
@pytest.mark.parametrize(
    "name", ["alice/../bob/b.ipynb", "alice//a.ipynb", "alice/x\\a.ipynb", "alice/05_masks/.."]
)
def test_a_member_that_leads_out_of_a_students_folder_is_that_students(tmp_path, name, wrapper):
    names = ["alice/a.ipynb", name, "bob/b.ipynb"]
    source = zipped(tmp_path / "a.zip", [(wrapper + one, "content") for one in names])
    assert found(source) == {"alice": "refused", "bob": "content"}


def test_a_member_that_leads_out_of_the_top_folder_is_nobodys(tmp_path):
    names = ["all/alice.ipynb", "all/../alice.ipynb", "alice/../x", "all/bob.ipynb"]
    got = found(zipped(tmp_path / "a.zip", [(name, "content") for name in names]))
    assert (got.pop("alice"), got.pop("bob")) == ("content", "content")
    assert list(got.values()) == ["refused", "refused"]


def test_a_point_in_front_is_harmless(tmp_path):
    assert found(in_zip(tmp_path / "a.zip", "./", "./alice.ipynb")) == {"alice": "./alice.ipynb"}


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
@pytest.mark.parametrize("name", ["alice.ipynb", "alice", "alice/a.ipynb", "alice/05_masks"])
def test_a_member_that_is_neither_file_nor_folder_is_refused(tmp_path, name, kind):
    members = [(member(name, mode=kind | 0o777), "/etc/passwd"), ("bob.ipynb", "bob")]
    assert found(zipped(tmp_path / "a.zip", members)) == {"alice": "refused", "bob": "bob"}


def test_a_link_does_not_hide_behind_its_own_folder(tmp_path):
    members = [(member("alice", mode=stat.S_IFLNK | 0o777), "/etc"), ("alice/a.ipynb", "a")]
    assert found(zipped(tmp_path / "a.zip", members)) == {"alice": "refused"}


def test_an_empty_top_folder_is_a_student(tmp_path):
    assert found(in_zip(tmp_path / "a.zip", "alice/")) == {"alice": "student_error"}


def test_ordinary_modes_are_harmless(tmp_path):
    members = [
        (member("alice/", mode=stat.S_IFDIR | 0o755), ""),
        (member("alice/a.ipynb", mode=stat.S_IFREG | 0o644), "a"),
        ("bob.ipynb", "b"),
    ]
    assert found(zipped(tmp_path / "a.zip", members)) == {"alice": "a", "bob": "b"}


def test_two_members_of_one_name_are_refused(tmp_path):
    members = [("a.ipynb", "one"), ("b/b.ipynb", "b"), (member("a.ipynb", (2021, 1, 1, 0, 0, 0)), "two")]
    members += [("b/data.csv", "one"), ("b/data.csv", "two")]
    with pytest.warns(UserWarning, match="Duplicate name"):
        source = zipped(tmp_path / "a.zip", members)
    assert found(source) == {"a": "refused", "b": "b"}
    with open_source(source, ASSIGNMENT) as opened:
        assert opened.submissions[0].problem.message == "The zip holds two members named a.ipynb."


def patched(path, field, value, name="alice.ipynb"):
    """Set a 16- or 32-bit field of one member in the zip's directory, by its offset there."""
    content = bytearray(path.read_bytes())
    at = content.index(name.encode(), content.index(b"PK\1\2")) - 46
    offset, kind = field
    struct.pack_into(kind, content, at + offset, value)
    path.write_bytes(content)
    return path


FLAGS, METHOD, CRC, SIZE, OFFSET = (8, "<H"), (10, "<H"), (16, "<L"), (24, "<L"), (42, "<L")


@pytest.mark.parametrize(
    ("field", "value", "status", "message"),
    [
        (FLAGS, 1, "refused", "alice.ipynb is encrypted."),
        (
            METHOD,
            zipfile.ZIP_LZMA,
            "refused",
            "alice.ipynb is packed in another way than zip's usual, deflate.",
        ),
        (METHOD, 99, "refused", "alice.ipynb is packed in another way than zip's usual, deflate."),
        (FLAGS, 0x20, "student_error", "alice.ipynb is broken inside the zip: "),
        (FLAGS, 0x40, "student_error", "alice.ipynb is broken inside the zip: "),
        (CRC, 1, "student_error", "alice.ipynb is broken inside the zip: "),
        (SIZE, 3, "student_error", "alice.ipynb is broken inside the zip: "),
        (OFFSET, 7, "student_error", "alice.ipynb is broken inside the zip: "),
        (OFFSET, 2**31, "student_error", "alice.ipynb is broken inside the zip: "),
    ],
)
def test_what_is_wrong_with_one_member_is_that_students(tmp_path, field, value, status, message):
    source = patched(in_zip(tmp_path / "a.zip", "alice.ipynb", "bob.ipynb"), field, value)
    assert found(source) == {"alice": status, "bob": "bob.ipynb"}
    with open_source(source, ASSIGNMENT) as opened:
        answer = opened.read(opened.submissions[0]).message
    assert answer.startswith(message)
    assert answer.isprintable()


def test_what_a_broken_zip_is_said_to_be_stays_short(tmp_path):
    long = "a" * 190 + ".ipynb"
    source = in_zip(tmp_path / "a.zip", "b.ipynb", long)
    one = patched(source, OFFSET, 0, long)  # where the other's begins
    with open_source(one, ASSIGNMENT) as opened:
        answer = opened.read(opened.submissions[0])
    assert answer.status == "student_error"
    assert len(answer.message) < len(long) + 150


def test_an_offset_before_the_file_is_the_students_fault(tmp_path):
    source = in_zip(tmp_path / "a.zip", "alice.ipynb", "bob.ipynb")
    content = bytearray(source.read_bytes())
    end = content.rindex(b"PK\5\6")
    struct.pack_into("<L", content, end + 16, struct.unpack_from("<L", content, end + 16)[0] + 1000)
    source.write_bytes(content)
    assert found(source) == {"alice": "student_error", "bob": "student_error"}


def test_a_disk_that_fails_is_the_graders_trouble(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    source = in_zip(tmp_path / "a.zip", "alice.ipynb")
    monkeypatch.setattr(submissions.zipfile.ZipFile, "open", fail)
    assert only(source)[1] == Problem("infra_error", "alice.ipynb could not be read: Input/output error.")


def test_a_bomb_is_unpacked_no_further_than_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "NOTEBOOK_BYTES", 1_000_000)
    members = [("alice.ipynb", b"\0" * 3_000_000), ("bob.ipynb", b"\0" * 1_000_000)]
    source = zipped(tmp_path / "a.zip", members)
    read = []
    unpack = zipfile.ZipExtFile.read
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda file, n=-1: read.append(n) or unpack(file, n))
    with open_source(source, ASSIGNMENT) as opened:
        alice, bob = opened.submissions
        assert opened.read(alice) == Problem(
            "oversize", "The notebook has 3,000,000 bytes; 1,000,000 bytes is the most allowed."
        )
        assert opened.read(bob) == b"\0" * 1_000_000
    assert read == [1_000_001, 1_000_001]


def test_nested_zips_stay_closed(tmp_path):
    inner = in_zip(tmp_path / "inner.zip", "a.ipynb").read_bytes()
    source = zipped(tmp_path / "a.zip", [("alice/a.zip", inner), ("bob/b.ipynb", "b"), ("bob/b.zip", inner)])
    assert found(source) == {"alice": "student_error", "bob": "b"}


def test_a_zip_with_something_before_and_behind_it_is_read(tmp_path):
    source = in_zip(tmp_path / "a.zip", "alice.ipynb", "bob.ipynb")
    with zipfile.ZipFile(source, "a") as archive:
        archive.comment = b"a comment" * 7_000
    source.write_bytes(b"#!/bin/sh\n" * 1_000 + source.read_bytes())
    assert found(source) == {"alice": "alice.ipynb", "bob": "bob.ipynb"}


def test_the_members_of_a_long_zip_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)  # from here on the longer end is written
    source = in_zip(tmp_path / "a.zip", *(f"{n}.ipynb" for n in range(5)))
    assert b"PK\6\6" in source.read_bytes()
    with source.open("rb") as file:
        assert submissions._count(file) == 5
    assert len(found(source)) == 5
    monkeypatch.setattr(submissions, "MAX_MEMBERS", 4)
    assert refused_as_a_whole(source) == " holds more than 4 members"


def test_a_directory_that_says_it_is_huge_is_not_read(tmp_path, monkeypatch):
    source = in_zip(tmp_path / "a.zip", "alice.ipynb")
    monkeypatch.setattr(submissions, "MAX_DIRECTORY_BYTES", 10)
    assert "its directory has 57 bytes, more than 10" in refused_as_a_whole(source)


def test_no_broken_zip_is_worse_than_refused(tmp_path):
    whole = in_zip(
        tmp_path / "whole.zip", "all/alice/a.ipynb", "all/alice/timestamp.txt", "all/bob.ipynb"
    ).read_bytes()
    draw, source = random.Random(0), tmp_path / "broken.zip"
    outcomes = set()
    for _ in range(300):
        content = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
        for _ in range(draw.randrange(1, 6)):
            if content:
                content[draw.randrange(len(content))] = draw.choice([0, 255, draw.randrange(256)])
        source.write_bytes(content)
        try:
            outcomes |= {was if was in STATUSES else "read" for was in found(source).values()}
        except SubmissionsError:
            outcomes.add("SubmissionsError")
    assert outcomes == {*STATUSES, "read", "SubmissionsError"} - {"infra_error", "oversize"}


STATUSES = {"student_error", "oversize", "refused", "infra_error"}


# One and all ------------------------------------------------------------------------------------


def test_bad_submissions_change_nobody_elses(tmp_path, outside):
    names = [f"student{n}.ipynb" for n in range(5)]
    good = fill(tmp_path / "good", *names)
    alone = found(good)
    with open_source(good, ASSIGNMENT) as opened:
        entries = opened.submissions
    bad = fill(good, "mallory/a.ipynb", "mallory/b.ipynb", "x\ny.ipynb", "empty/")
    (bad / "eve").symlink_to(outside)
    os.mkfifo(bad / "trudy.ipynb")
    assert {student: was for student, was in found(bad).items() if student in alone} == alone
    with open_source(bad, ASSIGNMENT) as opened:
        assert tuple(one for one in opened.submissions if one.student in alone) == entries


def test_the_place_itself_may_be_a_link(tmp_path):
    fill(tmp_path / "real", "alice.ipynb")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert found(Path(tmp_path / "link")) == {"alice": "alice.ipynb"}
