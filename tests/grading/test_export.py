"""What people and gradebooks get: no grade invented, none erased, nothing of a stranger's run or leaked."""

import csv
import errno
import io
import json
import os
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_course.grading import export, results
from attention_course.grading.export import canvas, feedback, moodle, plain, table, write
from attention_course.grading.results import RecordError, validate
from attention_course.grading.similarity import Pair

pytest_plugins = ["browser"]

NASTY = (
    "../../x",
    "CON",
    "con",
    "n" * 300,
    "\N{PILE OF POO} \N{SNOWMAN}",
    "a/b",
    "a\\b",
    "..",
    ".",
    "x\0y",
    "\udcff",
)


def exercise(name="03.scores", status="passed", points=5, max_points=5, message="All cases agree."):
    return {"name": name, "status": status, "points": points, "max_points": max_points, "message": message}


def record(student="ada", status="graded", **more):
    fields = {
        "key": "0a5eed",
        "student": student,
        "assignment": "03",
        "status": status,
        "points": 5,
        "max_points": 8,
        "exercises": [exercise(), exercise("03.softmax", "failed", 0, 3, "Rows sum to 0.5.")],
        "flags": [],
        "seconds": 1.5,
        "name": f"{student}/03.ipynb",
    }
    if status == "infra_error":
        fields |= {"points": None}
    validate(fields | more)
    return fields | more


def cells(text):
    assert "\r" not in re.sub('"[^"]*"', "", text), "every line ends with a line feed"
    return list(csv.reader(io.StringIO(text, newline="")))


# CSV ------------------------------------------------------------------------------------------


def test_the_plain_table_has_a_row_for_each_student_and_a_column_for_each_exercise():
    records = [
        record("cy", "timeout", flags=["late", "uses torch's own"]),
        record("ben", "oversize", points=0, exercises=[]),
        record("ada"),
    ]
    assert cells(plain(records)) == [
        ["student", "status", "points", "max_points", "scores", "softmax", "flags"],
        ["ada", "graded", "5", "8", "5", "0", ""],
        ["ben", "oversize", "0", "8", "", "", ""],
        ["cy", "timeout", "5", "8", "5", "0", "late; uses torch's own"],
    ]


def test_only_the_latest_record_of_a_student_counts():
    records = [record(points=0, exercises=[]), record()]
    assert [row[2] for row in cells(plain(records))] == ["points", "5"]
    assert [row[-1] for row in cells(canvas(records))] == ["03", "8", "5"]
    assert [row[1] for row in cells(moodle(records))] == ["03", "5"]
    assert "Submissions: 1\n" in table(records)


def test_an_infra_error_has_no_points_and_erases_none():
    records = [record(), record("ben", "infra_error")]
    assert cells(plain(records))[2] == ["ben", "infra_error", "", "8", "", "", ""]
    assert "ben" not in canvas(records) and "ben" not in moodle(records)
    assert len(cells(canvas(records))) == 3 and len(cells(moodle(records))) == 2


@pytest.mark.parametrize("status", sorted({*results.STATUSES} - {"graded", "infra_error"}))
def test_every_other_status_has_its_points_in_every_file(status):
    records = [record(status=status)]
    assert cells(plain(records))[1][:3] == ["ada", status, "5"]
    assert cells(canvas(records))[2][-1] == "5"
    assert cells(moodle(records))[1][1] == "5"


def test_exercises_of_one_short_name_and_those_named_like_a_column_are_told_in_full():
    names = ["03.scores", "04.scores", "03.points", "03.mask"]
    row = cells(plain([record(exercises=[exercise(name) for name in names], points=20, max_points=20)]))[0]
    assert row[4:-1] == ["03.scores", "04.scores", "03.points", "mask"]


def test_the_columns_follow_the_fullest_record():
    few = record("ada", exercises=[exercise("03.softmax", points=3, max_points=3)], points=3)
    assert cells(plain([few, record("ben")])) == [
        ["student", "status", "points", "max_points", "scores", "softmax", "flags"],
        ["ada", "graded", "3", "8", "", "3", ""],
        ["ben", "graded", "5", "8", "5", "0", ""],
    ]


def test_canvas_finds_the_student_by_login_and_the_points_in_the_second_row():
    assert cells(canvas([record("ada")])) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "03"],
        ["Points Possible", "", "", "", "", "8"],
        ["ada", "", "", "ada", "", "5"],
    ]


def test_moodle_finds_the_student_by_username_and_gets_a_comment():
    header, row = cells(moodle([record("ada")]))
    assert header == ["Username", "03", "Feedback comments"]
    meaning = export.MEANINGS["graded"]
    assert row == [
        "ada",
        "5",
        f"5 of 8 points. {meaning} scores: Passed (5 of 5 points). All cases agree. "
        "softmax: Not yet (0 of 3 points). Rows sum to 0.5.",
    ]


def test_a_comment_for_moodle_is_one_line_of_safe_html():
    text = "a < b & c\r\n<script>\x1b[31mx\x1b[0m\x07\N{RIGHT-TO-LEFT OVERRIDE}"
    comment = cells(moodle([record(exercises=[exercise(message=text)], max_points=5)]))[1][2]
    assert comment.endswith(
        "a &lt; b &amp; c &lt;script&gt;x\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    )


@pytest.mark.parametrize("make", [plain, canvas, moodle, table])
@pytest.mark.parametrize("field", [{"assignment": "04"}, {"max_points": 9}])
def test_records_that_do_not_agree_are_refused(make, field):
    with pytest.raises(RecordError, match=rf"do not agree on {next(iter(field))}: .*'ada'.*'ben'"):
        make([record("ada"), record("ben", **field)])


@pytest.mark.parametrize(
    "start", ["=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", " =", "'=", "\x0b-"]
)
def test_no_cell_starts_a_formula(start):
    text = f"{start}cmd|' /C calc'!A0"
    records = [record(text, flags=[text], exercises=[exercise(f"03.{text}")], max_points=5)]
    for make in (plain, canvas, moodle):
        for row in cells(make(records)):
            assert not any(
                cell.lstrip()[:1] in tuple("=+-@＝＋－＠") or cell[:1] in tuple("\t\r\n")
                for cell in row
                if cell
            )
    assert cells(plain(records))[1][0] == f"'{text}" == cells(canvas(records))[2][3]


@pytest.mark.parametrize("text", ["o'brien", "'quoted'", "a=b", "x-y@example.org", "", "5", "Points"])
def test_what_starts_no_formula_stays_as_it_is(text):
    assert export._cell(text) == text


def unguarded(cell):
    return cell[1:] if cell[:1] == "'" and export._FORMULA.match(cell) else cell


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text(
    "=+-@'\"\t\r\n,; a", min_size=1
)


@given(students=st.lists(names, min_size=1, max_size=5, unique=True))
def test_every_name_comes_back_as_it_was(students):
    records = [record(student) for student in students]
    assert [unguarded(row[0]) for row in cells(plain(records))[1:]] == sorted(students)
    assert [unguarded(row[3]) for row in cells(canvas(records))[2:]] == sorted(students)
    assert [unguarded(row[0]) for row in cells(moodle(records))[1:]] == sorted(students)


def test_a_name_that_is_no_text_is_still_written():
    assert cells(plain([record("a\udcff")]))[1][0] == "a\\udcff"


# A page for each student ----------------------------------------------------------------------


class Reader(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data):
        self.text += data


def text_of(one, **more):
    return Reader(feedback(one, **more)).text


def test_a_page_tells_the_student_everything_about_each_exercise():
    text = text_of(record("ada"), titles={"03.scores": "Scores of a query"})
    for shown in ("Feedback: 03", "ada", "5 of 8 points", "Graded", export.MEANINGS["graded"]):
        assert shown in text
    assert "Scores of a query (03.scores)Passed, 5 of 5 pointsAll cases agree." in text
    assert "03.softmaxNot yet, 0 of 3 pointsRows sum to 0.5." in text


def test_a_page_says_nothing_of_flags_keys_paths_or_seconds():
    page = feedback(record("ada", flags=["similar to ben"], seconds=77.25, name="ben/secret.ipynb"))
    for secret in ("similar", "ben", "0a5eed", "77", "secret"):
        assert secret not in page


@pytest.mark.parametrize("status", results.STATUSES)
def test_each_status_has_its_own_sentence(status):
    text = text_of(record(status=status))
    assert export.MEANINGS[status] in text and export.WORDS[status] in text
    assert not any(other in text for key, other in export.MEANINGS.items() if key != status)


@pytest.mark.parametrize("words", [export.WORDS, export.MEANINGS, export.EXERCISE_WORDS])
def test_no_two_statuses_have_the_same_words(words):
    known = results.EXERCISE_STATUSES if words is export.EXERCISE_WORDS else results.STATUSES
    assert set(words) == set(known) and len(set(words.values())) == len(words)


def test_an_infra_error_is_nobodys_zero():
    text = text_of(record("ada", "infra_error"))
    assert "not graded yet; this is no fault of yours; no points were taken" in text
    assert " of 8" not in text and "Passed" not in text and "Exercises" not in text


TAGS = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&lt;</main>"
EVIL = f"{TAGS}\x1b[31mred\x1b[0m\x00\x07\x9b\N{RIGHT-TO-LEFT OVERRIDE}\udcff"


def test_nothing_from_elsewhere_becomes_html_or_moves_a_terminals_cursor():
    harmless = Reader(feedback(record(), {"03.scores": "x"}))
    one = record(EVIL, exercises=[exercise(EVIL, message=EVIL)], max_points=5, assignment=EVIL)
    page = feedback(one, {EVIL: EVIL})
    evil = Reader(page)
    assert [tag for tag in evil.tags if tag not in harmless.tags] == []
    assert evil.tags.count("main") == 1 and "script" not in evil.tags and "img" not in evil.tags
    assert {name for name, _ in evil.attributes} == {name for name, _ in harmless.attributes}
    assert "<" not in re.sub(r"</?[a-z1-3]+[^<>]*>|<!doctype html>", "", page)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]", page)
    shown = f"{TAGS}red" + "\N{REPLACEMENT CHARACTER}" * 5
    assert evil.text.count(shown) == 6  # title, heading, student, title and name of the exercise, message


def test_quotes_are_escaped():
    assert "&quot;" in feedback(record('"')) and "&#x27;" in feedback(record("'"))


def test_a_page_allows_itself_nothing_but_its_style():
    page = feedback(record())
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    assert f'<meta http-equiv="Content-Security-Policy" content="{policy}">' in page
    assert '<html lang="en">' in page and "<title>Feedback: 03</title>" in page
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page


LONG = "word" * 100 + "\n  second line"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("status", ["graded", "infra_error"])
def test_a_page_is_for_everybody(new_page, tmp_path, scheme, status):
    from axe_playwright_python.sync_playwright import Axe

    path = tmp_path / "page.html"
    one = record("ada", status, exercises=[exercise(), exercise("03.x", "failed", 0, 3, LONG)])
    path.write_text(feedback(one, {"03.scores": "Scores"}), encoding="utf-8")
    page = new_page(320, color_scheme=scheme)
    page.goto(path.as_uri())
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 30)"}[scheme]
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    found = Axe().run(page).response
    assert found["violations"] == []
    passed = {rule["id"] for rule in found["passes"]}
    assert {"color-contrast", "region", "landmark-one-main", "document-title", "html-has-lang"} <= passed
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


# On disk --------------------------------------------------------------------------------------


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_everything_is_written_into_the_folder(tmp_path):
    records = [record("ada"), record("ben", "infra_error")]
    paths = write(tmp_path / "out", records, {"03.scores": "Scores"})
    expected = [
        "feedback/ada.html",
        "feedback/ben.html",
        "grades-canvas.csv",
        "grades-moodle.csv",
        "grades.csv",
    ]
    assert tree(tmp_path) == [f"out/{name}" for name in expected]
    assert sorted(paths) == [tmp_path / "out" / name for name in expected]
    for name, make in (("grades", plain), ("grades-canvas", canvas), ("grades-moodle", moodle)):
        assert (tmp_path / "out" / f"{name}.csv").read_bytes() == make(records).encode()
    page = (tmp_path / "out" / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert page == feedback(records[0], {"03.scores": "Scores"})


def test_no_file_starts_with_a_byte_order_mark(tmp_path):
    write(tmp_path, [record("Zoë")])
    assert (tmp_path / "grades.csv").read_bytes().startswith(b"student,")
    assert "Zoë".encode() in (tmp_path / "grades.csv").read_bytes()


def test_whatever_students_are_called_their_pages_are_in_feedback_and_nobody_elses(tmp_path):
    students = [*NASTY, "ada"]
    write(tmp_path / "out", [record(student) for student in students])
    pages = list((tmp_path / "out" / "feedback").iterdir())
    assert len(pages) == len(students) and len(tree(tmp_path)) == len(students) + 3
    shown = sorted(page.read_text(encoding="utf-8") for page in pages)
    assert shown == sorted(feedback(record(student)) for student in students)


@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "x/../y", "a\0b"])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setattr(export, "safe_name", lambda student: name)
    with pytest.raises(RecordError, match="outside its folder"):
        write(tmp_path / "out", [record()])
    assert tree(tmp_path) == []


def test_two_students_never_share_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "safe_name", lambda student: "same")
    with pytest.raises(RecordError, match=r"'ada' and 'ben' would share 'same\.html'"):
        write(tmp_path / "out", [record("ada"), record("ben")])
    assert tree(tmp_path) == []


def test_pages_of_students_without_a_record_stay(tmp_path):
    write(tmp_path, [record("ada"), record("ben")])
    before = (tmp_path / "feedback" / "ben.html").read_bytes()
    write(tmp_path, [record("ada")])
    assert (tmp_path / "feedback" / "ben.html").read_bytes() == before


def test_there_is_nothing_to_export_without_records(tmp_path):
    with pytest.raises(RecordError, match="no records"):
        write(tmp_path / "out", [])
    assert tree(tmp_path) == []
    assert plain([]) == "student,status,points,max_points,flags\n" and canvas([]) == moodle([]) == ""


def test_a_link_in_the_place_of_a_page_is_replaced_not_followed(tmp_path):
    (tmp_path / "feedback").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "feedback" / "ada.html").symlink_to(tmp_path / "mine")
    write(tmp_path, [record()])
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_file_that_cannot_be_written_stays_what_it_was(tmp_path, monkeypatch):
    write(tmp_path, [record()])
    before = {name: (tmp_path / name).read_bytes() for name in tree(tmp_path)}

    def fail(handle):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError):
        write(tmp_path, [record(points=0, exercises=[])])
    assert {name: (tmp_path / name).read_bytes() for name in tree(tmp_path)} == before


# For the terminal -----------------------------------------------------------------------------


def test_the_table_tells_how_the_class_did():
    records = [
        record("ada"),
        record("ben", points=8, exercises=[exercise(), exercise("03.softmax", points=3, max_points=3)]),
        record("cy", points=0, exercises=[exercise(status="missing", points=0)], flags=["late", "odd"]),
        record("dee", "timeout"),
        record(
            "eve", "oversize", points=0, exercises=[exercise(status="missing", points=0, message="21 MB.")]
        ),
        record("fay", "infra_error"),
    ]
    assert table(records).split("\n") == [
        "Submissions: 6",
        "  graded       3",
        "  timeout      1",
        "  oversize     1",
        "  infra_error  1",
        "",
        "Points of 8, over 3 graded: mean 4.3, median 5, min 0, max 8",
        "",
        "Passed, of those graded:",
        "  scores   2 of 3  67%",
        "  softmax  1 of 3  33%",
        "",
        "To look at:",
        "  cy   graded       late; odd",
        "  dee  timeout      Rows sum to 0.5.",
        "  eve  oversize     21 MB.",
        "  fay  infra_error  Rows sum to 0.5.",
    ]


def test_a_class_that_went_well_has_nothing_to_look_at():
    assert "To look at" not in table([record("ada"), record("ben")])


def test_a_table_without_grades_has_no_numbers_made_up():
    shown = table([record("ada", "infra_error", exercises=[])])
    assert "No submission was graded." in shown and "mean" not in shown and "Passed" not in shown
    assert shown.endswith("  ada  infra_error  Not graded yet")
    assert table([]) == "Submissions: 0\n\nNo submission was graded."


@pytest.mark.parametrize("more", [0, 1, 12])
def test_a_long_list_is_cut(more):
    shown = table([record(f"s{number:02}", "timeout") for number in range(20 + more)])
    assert sum("timeout  Rows" in line for line in shown.split("\n")) == 20
    assert shown.endswith(f"... and {more} more in grades.csv") == bool(more)


def test_a_terminal_gets_no_controls_and_no_line_too_long():
    evil = "\x1b[2J\x1b]0;x\x07\r\n" + "n" * 300
    shown = table([record(evil, flags=[evil]), record("ben", exercises=[exercise(evil)], max_points=8)])
    assert not re.search("[\x00-\x09\x0b-\x1f]", shown)
    assert all(len(line) <= 140 for line in shown.split("\n"))


def test_records_from_a_log_are_exported(tmp_path):
    with results.open_log(tmp_path) as log:
        log.append(json.loads(json.dumps(record())))
    write(tmp_path, results.read(tmp_path / results.NAME)[0])
    assert (tmp_path / "feedback" / "ada.html").is_file()


# Alike ----------------------------------------------------------------------------------------


def test_pairs_that_are_alike_are_written_and_told(tmp_path):
    export.write_alike(tmp_path, [Pair("ada", "=bob", 0.934, 12)])
    rows = list(csv.reader((tmp_path / "similarity.csv").read_text(encoding="utf-8").splitlines()))
    assert rows == [["first", "second", "share", "common"], ["ada", "'=bob", "0.93", "12"]]
    assert "ada and =bob: 93%" in export.alike_lines([Pair("ada", "=bob", 0.934, 12)])
    assert export.alike_lines([]) == ""
    many = [Pair(str(number), "x", 1.0, 9) for number in range(export.SHOWN + 3)]
    assert "... and 3 more in similarity.csv" in export.alike_lines(many)
