"""From a stranger's bytes to cells: every fault has a sentence of its own, and nothing worse."""

import json

import pytest

from attention_course.grading.cells import Cell, Unreadable, read_cells, shown


def notebook(*some, **changed):
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": some} | changed).encode()


def code(source="x = 1", **more):
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": [], **more}


def fault(content):
    with pytest.raises(Unreadable) as caught:
        read_cells(content)
    assert str(caught.value) == caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 200
    return caught.value.status, caught.value.message


def test_a_notebook_becomes_its_cells():
    marked = code(["x = 1\n", "y = 2"], metadata={"nbgrader": {"grade_id": "one", "points": 1000}})
    text = {"cell_type": "markdown", "source": "Words."}
    assert read_cells(notebook(marked, text, {"cell_type": "raw", "source": ""})) == (
        Cell("code", "x = 1\ny = 2", "one"),
        Cell("markdown", "Words.", None),
        Cell("raw", "", None),
    )
    assert read_cells(notebook()) == ()


def test_a_byte_order_mark_and_blanks_around_are_harmless():
    assert read_cells(b"\xef\xbb\xbf\n " + notebook(code()) + b"\n\n") == read_cells(notebook(code()))


def test_format_3_is_read():
    old = {
        "nbformat": 3,
        "worksheets": [
            {"cells": [{"cell_type": "heading", "level": 2, "source": ["Title"]}]},
            {
                "cells": [
                    {"cell_type": "code", "input": ["x = 1"], "metadata": {"nbgrader": {"grade_id": "a"}}}
                ]
            },
            {
                "cells": [
                    {"cell_type": "html", "source": "<p>"},
                    {"cell_type": "heading", "source": "T", "level": []},
                ]
            },
        ],
    }
    assert read_cells(json.dumps(old).encode()) == (
        Cell("markdown", "## Title", None),
        Cell("code", "x = 1", "a"),
        Cell("markdown", "<p>", None),
        Cell("markdown", "# T", None),
    )


@pytest.mark.parametrize("kind", ["sql", None, ["code"], {"code": 1}, 7])
def test_a_cell_of_an_unknown_kind_is_raw(kind):
    [cell] = read_cells(notebook(code(cell_type=kind)))
    assert cell.kind == "raw"


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"nbgrader": {"grade_id": "a" * 200}}, "a" * 200),
        ({"nbgrader": {"grade_id": "a" * 201}}, None),
        ({"nbgrader": {"grade_id": 7}}, None),
        ({"nbgrader": {"grade_id": ["a"]}}, None),
        ({"nbgrader": {"grade_id": "\ud800"}}, "\ufffd"),
        ({"nbgrader": {}}, None),
        ({"nbgrader": []}, None),
        ([], None),
        (None, None),
    ],
)
def test_only_a_short_text_is_a_grade_id(metadata, found):
    [cell] = read_cells(notebook(code(metadata=metadata)))
    assert cell.grade_id == found


def test_text_that_cannot_be_stored_is_replaced():
    [cell] = read_cells(notebook(code("a\0b\ud83dc\udca9 \U0001f600")))
    assert cell.source == "a\ufffdb\ufffdc\ufffd \U0001f600"
    cell.source.encode()


def test_strange_numbers_are_harmless():
    content = notebook(code(execution_count="here")).decode()
    for number in ("NaN", "-Infinity", "1e999999", "9" * 100_000, "1." + "9" * 100_000):
        assert read_cells(content.replace('"here"', number).encode()) == (Cell("code", "x = 1", None),)


# Faults ---------------------------------------------------------------------------------------

WHOLE = notebook(code())

FAULTS = {
    "empty": (b"", "The file is empty."),
    "blank": (b"\xef\xbb\xbf \n", "The file is empty."),
    "latin": (b'{"\xe9": 1}', "The file is not UTF-8 text: byte 3 is not part of any."),
    "utf-16": (WHOLE.decode().encode("utf-16"), "The file is not UTF-8 text: byte 1 is not part of any."),
    "html": (b"<!DOCTYPE html>", "The file is no notebook: it begins with “<!DOCTYPE html>”, not with “{”."),
    "zip": (b"PK\3\4", "The file is no notebook: it begins with “PK??”, not with “{”."),
    "cut": (
        b'{"nbformat": 4, "cells": [',
        'The file is cut off: it ends with “rmat": 4, "cells": [”, in the middle of a notebook.',
    ),
    "cut at a brace": (
        b'{"a": {}',
        'The file is cut off: it ends with “{"a": {}”, in the middle of a notebook.',
    ),
    "invalid": (b'{"a" 1}', "The file is not valid JSON: line 1, column 6: Expecting ':' delimiter."),
    "list": (b"[1]", "The file is JSON, but no notebook: it begins with “[1]”, not with “{”."),
    "object": (b"{}", "The file is JSON, but no notebook: it has no number “nbformat”."),
    "true": (notebook(nbformat=True), "The file is JSON, but no notebook: it has no number “nbformat”."),
    "format 5": (
        notebook(nbformat=5),
        "The notebook has nbformat 5, which is newer than 4: save it as nbformat 4.",
    ),
    "format 2": (notebook(nbformat=2), "The notebook has nbformat 2: save it as nbformat 4."),
    "format NaN": (notebook(nbformat=float("nan")), "The notebook has nbformat nan: save it as nbformat 4."),
    "no cells": (notebook(cells=None), "The notebook has no list “cells”."),
    "cells by name": (notebook(cells={"a": code()}), "The notebook has no list “cells”."),
    "no sheets": (notebook(nbformat=3), "The notebook has no list “worksheets”."),
    "no sheet": (notebook(nbformat=3, worksheets=[7]), "A worksheet of the notebook has no list “cells”."),
    "number": (notebook(code(), 7), "Cell 2 is not an object."),
    "no source": (notebook(code(), code(), {"cell_type": "code"}), "Cell 3 has no source."),
    "object source": (notebook(code({})), "Cell 1 has a source that is neither text nor a list of lines."),
    "mixed source": (
        notebook(code(["a", 1])),
        "Cell 1 has a source that is neither text nor a list of lines.",
    ),
    "deep": (
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "The file nests lists or objects too deeply for a notebook.",
    ),
}


@pytest.mark.parametrize(("content", "message"), FAULTS.values(), ids=FAULTS)
def test_each_fault_has_its_own_sentence(content, message):
    assert fault(content) == ("student_error", message)


SIZES = [
    (
        notebook(*[code("")] * 2_001),
        notebook(*[code("")] * 2_000),
        "The notebook has 2,001 cells; 2,000 is the most allowed.",
    ),
    (
        notebook(code("x" * 200_001)),
        notebook(code("x" * 200_000)),
        "Cell 1 has 200,001 characters; 200,000 is the most allowed.",
    ),
    (
        notebook(code(["x"] * 200_001)),
        notebook(code(["x"] * 200_000)),
        "Cell 1 has 200,001 characters; 200,000 is the most allowed.",
    ),
    (
        notebook(*[code("x" * 200_000)] * 10, code("x")),
        notebook(*[code("x" * 200_000)] * 10),
        "The cells hold more than 2,000,000 characters in all.",
    ),
    (
        notebook(code(outputs=[[], {}] * 250_000)),
        notebook(code(outputs=[[], {}] * 249_000)),
        "The file opens more than 500,000 lists and objects.",
    ),
]


@pytest.mark.parametrize(
    ("large", "fits", "message"), SIZES, ids=["cells", "cell", "lines", "all", "brackets"]
)
def test_more_than_an_answer_needs_is_oversize(large, fits, message):
    assert fault(large) == ("oversize", message)
    assert read_cells(fits)


def test_every_beginning_of_a_notebook_is_a_fault():
    for end in range(1, len(WHOLE)):
        assert fault(WHOLE[:end])[1].startswith("The file is cut off: it ends with")


def test_what_is_shown_of_a_text_is_short_and_printable():
    assert shown("a\nb\x1b[31m\ud800\u202e") == "a b?[31m??"
    assert len(shown("a" * 1000)) == 100
    assert shown(7) == "7"
