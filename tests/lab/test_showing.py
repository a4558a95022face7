import inspect

import pytest

from attention_course.attention import mix
from attention_course.lab.page.showing import source, table


def test_a_table():
    assert table(["word", "weight"], [("cat", "0.49"), ("mat", 1)]).data.splitlines() == [
        "| word | weight |",
        "|:---|---:|",
        "| cat | 0.49 |",
        "| mat | 1 |",
    ]


def test_text_columns_stand_left():
    assert table(["a", "b", "c"], [], text_columns=2).data.splitlines()[1] == "|:---|:---|---:|"


def test_a_row_of_another_length():
    with pytest.raises(ValueError, match="2 cells as the header has, got"):
        table(["word", "weight"], [("cat",)])


def test_the_source_is_the_packages_own():
    assert inspect.getsource(mix).strip() in source(mix).data
