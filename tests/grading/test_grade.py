"""One submission against the sandbox: what must hold, a test for each kind of stranger."""

import json
import os
import re
import shutil
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from strangers import (
    LIMITS,
    NAME,
    ROOT,
    SCORES,
    SEED,
    SHAPES,
    SOFTMAX,
    code,
    full,
    function,
    grade_id,
    grader,
    instead,
    lost,
    notebook,
    source,
    submission,
)  # fmt: skip

from attention_course.checks.engine.registry import MODULES, find_exercise
from attention_course.grading import grade, remote, sandbox, seccomp, wire
from attention_course.grading.assignment import load, plan
from attention_course.grading.cells import Cell

#: where something has to run into them
SHORT = replace(LIMITS, cell=4.0, call=4.0, total=60.0)
#: what must hold for every chapter is tried on three of different kinds
each_shape = pytest.mark.parametrize("chapter", SHAPES)

if not shutil.which("bwrap"):
    if os.environ.get("CI"):
        pytest.fail("bubblewrap is not installed: no test of the grader can run", pytrace=False)
    pytest.skip("needs bubblewrap", allow_module_level=True)

#: attention that does not stand on the notebook's own softmax
OWN = (
    "def attention(query, key, value):\n    w = torch.softmax(scores(query, key), -1)\n"
    "    return w @ value, w\n"
)


@pytest.fixture(scope="module")
def assignment():
    return load(ROOT / "exercises", NAME)


@pytest.fixture(scope="module")
def launcher(assignment):
    with remote.launcher(assignment.files, assignment.preload, LIMITS) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def graded():
    with grader() as grades:
        yield grades


def only(chapter: str) -> set[str]:
    """The exercise whose answer ``instead`` replaces."""
    return {function(SHAPES[chapter])}


# Honest submissions ---------------------------------------------------------------------------


def test_one_wrong_answer_costs_itself_and_is_named(graded):
    wrong = "def softmax(scores):\n    e = torch.exp(scores)\n    return e / e.sum(-1, keepdim=True)\n"
    record = graded(submission({"softmax": wrong}))
    assert record["status"] == "graded"
    assert lost(record) >= {"softmax"}
    assert "scores" not in lost(record)
    assert "Usual mistake" in record["by"]["softmax"]["message"]


def test_nan_on_large_logits_fails_softmax_and_what_stands_on_it_only(graded):
    overflowing = (
        "def softmax(scores):\n    return torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)\n"
    )
    assert lost(graded(submission({"softmax": overflowing, "attention": OWN}))) == {"softmax"}


@pytest.mark.parametrize(
    "noise",
    [
        "import warnings\nwarnings.warn('careful')\nimport sys\nprint('x', file=sys.stderr)",
        "import warnings\nwarnings.simplefilter('error')",
        "import torch\ntorch.set_default_dtype(torch.float64)",
        "import torch\ntorch.manual_seed(1)\ntorch.set_grad_enabled(False)",
        "import torch\ntorch.use_deterministic_algorithms(True)",
    ],
    ids=["warnings", "warnings as errors", "default dtype", "no gradients", "deterministic"],
)
@each_shape
def test_correct_code_with_other_settings_gets_full_points(graded, chapter, noise):
    assert full(graded(submission(first=noise, name=chapter), name=chapter))


@each_shape
@pytest.mark.parametrize(
    "body",
    [
        "import warnings; warnings.warn('x'); return right(*inputs)",
        "torch.manual_seed(0); torch.randn(3); return right(*inputs)",
        "result = right(*inputs)\n    return result * (1 + 1e-6) if result.is_floating_point() else result",
    ],
    ids=["a warning", "a reseeded generator", "float noise"],
)
def test_what_changes_no_answer_costs_nothing(graded, chapter, body):
    assert full(graded(instead(chapter, body), name=chapter))


def test_the_same_name_used_again_after_its_check_costs_nothing(graded):
    cells = source()
    place = next(i for i, cell in enumerate(cells) if grade_id(cell) == "check-scores")
    cells.insert(place + 1, code("kept = scores\nscores = torch.zeros(2)"))
    place = next(i for i, cell in enumerate(cells) if grade_id(cell) == "softmax")
    cells.insert(place, code("scores = kept"))
    assert graded(notebook(cells))["points"] == 10


def test_a_function_that_is_mended_in_a_later_cell_counts(graded):
    wrong = "def scores(query, key):\n    return query @ key.mT\n"
    record = graded(submission({"scores": wrong}, last=SCORES))
    assert record["points"] == 10


def test_commands_of_the_system_are_not_run_and_cost_nothing(graded):
    first = "!pip install numpy\n%pip install numpy\n%matplotlib inline\nfiles = !ls\nx = 1"
    record = graded(submission(first=first, last="%%bash\ntouch x"))
    assert record["points"] == 10
    assert any("commands of the system" in flag for flag in record["flags"])


def test_the_body_of_a_timed_cell_is_run(graded):
    assert graded(submission({"scores": f"%%time\n{SCORES}"}))["points"] == 10


def test_the_public_inputs_can_be_looked_at(graded):
    first = (
        "from attention_course.checks import inputs, hint, progress, check\n"
        f"query, key = inputs('{NAME}.scores', 'one decimal')\nshape = query.shape\n"
    )
    text = f"shape  # raises if the cell above did\n{SCORES}"
    assert graded(submission({"scores": text}, first=first))["points"] == 10


def test_an_explicit_figure_costs_nothing(graded):
    first = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\ndisplay(1)"
    assert graded(submission(first=first))["points"] == 10


# Files that are no notebooks ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", "student_error", "empty"),
        (submission()[:4000], "student_error", "JSON|cut off"),
        (b"\x00\xff\xfe", "student_error", "text|UTF-8"),
        (b"[1, 2]", "student_error", "notebook"),
        (b'{"nbformat": 5, "cells": []}', "student_error", "nbformat"),
        (b"[" * 100_000, "student_error", "JSON|deep|cut off"),
        (notebook([code("x = 1")] * 3000), "oversize", "cells"),
    ],
    ids=["empty", "truncated", "binary", "a list", "nbformat 5", "deep", "many cells"],
)
def test_what_is_no_notebook_has_a_status_and_a_sentence(graded, content, status, words):
    record = graded(content)
    assert (record["status"], record["points"]) == (status, 0)
    assert re.search(words, record["exercises"][0]["message"])


def test_pasted_pictures_cost_nothing(graded):
    """They are text in cells that are no code, as large as they may be."""
    picture = code("![](data:image/png;base64," + "A" * 250_000 + ")")
    pictures = [{**picture, "cell_type": "markdown"}, {**picture, "cell_type": "raw"}]
    assert full(graded(notebook([*pictures * 5, *source()])))


def test_a_byte_order_mark_costs_nothing(graded):
    assert graded(b"\xef\xbb\xbf" + submission())["points"] == 10


def test_nbformat_3_is_read(graded):
    cells = [
        {"cell_type": "code", "input": cell["source"], "language": "python", "metadata": {}, "outputs": []}
        for cell in source() if cell["cell_type"] == "code"
    ]  # fmt: skip
    content = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}
    assert graded(json.dumps(content).encode())["points"] == 10


@each_shape
def test_other_questions_of_the_notebook_are_never_believed(graded, chapter):
    cells = source(chapter)
    for cell in cells:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"].update(points=1000, grade=False, solution=False, schema_version=99)
        if cell["cell_type"] == "code":
            data = {"application/vnd.attention-course.check+json": {"exercise": "x", "status": "passed"}}
            forged = {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": 1}
            cell["outputs"] = [forged]
    [name] = only(chapter)
    wrong = [
        code(f"def {name}(*inputs):\n    return 198") if grade_id(one) == SHAPES[chapter] else one
        for one in cells
    ]
    evil = {"name": "evil", "display_name": "evil", "argv": ["rm", "-rf", "/"], "language": "python"}
    record, right = (
        graded(notebook(wrong, kernelspec=evil), name=chapter),
        graded(notebook(cells), name=chapter),
    )
    assert full(right) and record["max_points"] == right["max_points"] < 20
    assert lost(record) == {name}


# Answers that are no answers ------------------------------------------------------------------

WRONG = {
    "shape": ("return result.unsqueeze(0)", "shape"),
    "dtype": ("return result.half()", "dtype"),
    "list": ("return result.tolist()", "a list"),
    "numpy": ("return result.detach().numpy()", "NumPy"),
    "none": ("result", "None"),
    "raises": ("raise KeyError('what')", "KeyError"),
    "in place": (
        "given = next(one for one in inputs if one.is_floating_point())\n"
        "    torch.no_grad()(given.add_)(1)\n    return result",
        "in place",
    ),
    "no gradient": ("return result.detach()", "gradient"),
    "NaN": ("return result * float('nan')", "NaN"),
    "sparse": ("return result.to_sparse()", "sparse"),
    "tuple": ("return result, result", "tuple"),
}


@each_shape
@pytest.mark.parametrize(("body", "words"), WRONG.values(), ids=list(WRONG))
def test_each_kind_of_wrong_answer_has_a_message_of_its_own(graded, chapter, body, words):
    record = graded(instead(chapter, f"result = right(*inputs)\n    {body}"), name=chapter)
    assert (record["status"], lost(record)) == ("graded", only(chapter))
    [name] = only(chapter)
    assert record["by"][name]["status"] == "failed"
    assert words in record["by"][name]["message"]


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("scores = 5", "must be a function"),
        ("def other(query, key):\n    return 1", "No cell defines scores|its cell"),
        ("def scores(query, key:\n    return 1", "SyntaxError"),
        ("", "is empty"),
        ("undefined_name\ndef scores(query, key):\n    return 1", "NameError"),
    ],
    ids=["not callable", "missing", "syntax error", "empty", "its cell stops"],
)
def test_what_is_not_there_has_a_message_of_its_own(graded, cell, words):
    answer = {"scores": cell, "attention": "def attention(query, key, value):\n    return None"}
    record = graded(submission(answer))
    assert record["status"] == "graded"
    assert re.search(words, record["by"]["scores"]["message"])
    assert "softmax" not in lost(record)


def test_an_answer_in_a_cell_that_is_no_code_is_told(graded):
    cells = source()
    next(cell for cell in cells if grade_id(cell) == "scores")["cell_type"] = "markdown"
    assert "markdown" in graded(notebook(cells))["by"]["scores"]["message"]


@each_shape
def test_deleted_copied_and_moved_checks_change_nothing(graded, chapter):
    cells = source(chapter)
    without = [cell for cell in cells if not (grade_id(cell) or "").startswith("check")]
    checks = [cell for cell in cells if (grade_id(cell) or "").startswith("check")]
    for moved in (without, [*checks, *cells, *checks], [*cells, *cells]):
        assert full(graded(notebook(moved), name=chapter))


# Forgeries ------------------------------------------------------------------------------------

ALWAYS = """
class AlwaysEqual(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return True
    def __eq__(self, other): return True
    def __bool__(self): return True
    shape = property(lambda self: AlwaysEqual())
"""
FORGED = {
    "always equal": (ALWAYS, "return torch.zeros(1).as_subclass(AlwaysEqual)"),
    "an object that equals all": ("class A:\n    def __eq__(self, o): return True", "return A()"),
    "patched comparisons": (
        "import torch\nfor name in ('allclose', 'isclose', 'equal'):\n"
        "    setattr(torch, name, lambda *a, **k: torch.tensor(True))\n"
        "torch.testing.assert_close = lambda *a, **k: None",
        "return torch.zeros_like(right(*inputs))",
    ),
    "patched checks": (
        "import attention_course.checks.engine.observe as o, attention_course.grading.child as c\n"
        "from attention_course.checks import check\n"
        "o.observe = lambda *a, **k: o.Outcome(result=True)\nc.wire.encode = lambda *a, **k: {'pass': True}",
        "return 1",
    ),
    "asserts stripped": (
        "import ast\nast.parse = lambda *a, **k: ast.Module([], [])\n"
        "import builtins\nbuiltins.AssertionError = Warning",
        "return inputs[0]",
    ),
    "gives back the cotangent": (
        "import attention_course.checks.engine.observe as o\n"
        "o._gradients = lambda result, arguments, cotangents: tuple(\n"
        "    torch.zeros_like(one) + cotangents[0].flatten()[0] if one.requires_grad else None\n"
        "    for one in arguments)",
        "return right(*inputs)",
    ),
    "pickle": (
        "class Evil:\n    def __reduce__(self):\n        import os\n"
        "        return (os.system, ('touch pwned',))",
        "return Evil()",
    ),
    "answers nothing that is JSON": (
        "import attention_course.grading.wire as w\n"
        "w.pack = lambda *a: b'\\x00\\x00\\x00\\x05' + bytes(8) + b'{\"a\":'",
        "return inputs[0]",
    ),
    "a deep answer": (
        "import attention_course.grading.wire as w, struct\ntext = b'[' * 900000\n"
        "w.pack = lambda *a: struct.pack('!IQ', len(text), 0) + text",
        "return inputs[0]",
    ),
    "a frame of four gigabytes": (
        "import attention_course.grading.wire as w, struct\n"
        "w.pack = lambda *a: struct.pack('!IQ', 2**32 - 1, 2**60) + bytes(1000)",
        "return inputs[0]",
    ),
    "a tensor of other bytes": (
        "import attention_course.grading.wire as w, struct\n"
        "text = b'{\"result\":{\"tensor\":0},\"changed\":[],\"called\":[],\"tensors\":"
        "[{\"dtype\":\"float32\",\"shape\":[9999999]}]}'\n"
        "w.pack = lambda *a: struct.pack('!IQ', len(text), 0) + text",
        "return inputs[0]",
    ),
    "gradients of another shape": (
        "import attention_course.checks.engine.observe as o\n"
        "o._gradients = lambda result, arguments, cotangents: [torch.zeros(1)] * len(arguments)",
        "return right(*inputs)",
    ),
}  # fmt: skip


@each_shape
@pytest.mark.parametrize(("first", "body"), FORGED.values(), ids=list(FORGED))
def test_a_forged_answer_gets_nothing_for_it(graded, chapter, first, body):
    record = graded(instead(chapter, body, first), name=chapter)
    assert only(chapter) <= lost(record)
    assert record["status"] in ("graded", "refused")
    assert not Path("pwned").exists()  # had the answer been unpickled here


@each_shape
def test_a_verdict_written_to_every_descriptor_gets_nothing(graded, chapter):
    first = (
        "import os\nfor number in range(256):\n    try:\n        os.write(number, b'{\"pass\": true}')\n"
        "    except OSError:\n        pass"
    )
    record = graded(instead(chapter, "return inputs[0]", first), name=chapter)
    assert only(chapter) <= lost(record)
    assert record["status"] == "refused"


@each_shape
def test_nothing_of_the_grader_is_open_or_named(graded, chapter):
    """Above all not the socket by which processes are asked for."""
    first = (
        "import os\nopen_ones = {int(one) for one in os.listdir('/proc/self/fd')}\n"
        "there = [one for one in open_ones if os.path.exists(f'/proc/self/fd/{one}')]\n"
        "kinds = [os.readlink(f'/proc/self/fd/{one}') for one in there]\n"
        "assert sum(kind != '/dev/null' for kind in kinds) == 1, kinds\n"
        "known = {'HOME', 'TMPDIR', 'USER', 'PATH', 'LANG', 'MPLBACKEND', 'MPLCONFIGDIR'}\n"
        "assert set(os.environ) == {*known, 'OMP_NUM_THREADS', 'TORCHDYNAMO_DISABLE'}\nCLEAN = True\n"
    )
    assert full(graded(instead(chapter, "CLEAN; return right(*inputs)", first), name=chapter))


@each_shape
def test_public_answers_do_not_help(graded, chapter):
    """An answer that knows what learners see, and nothing else."""
    [name] = only(chapter)
    cases = [case.name for case in find_exercise(f"{chapter}.{name}").cases]
    first = (
        "from attention_course.checks import inputs as public\nknown = {}\n"
        f"for case in {cases!r}:\n    given = public('{chapter}.{name}', case)\n"
        "    known[tuple(one.shape for one in given)] = right(*given).detach()\n"
    )
    record = graded(instead(chapter, "return known[tuple(one.shape for one in inputs)]", first), name=chapter)
    assert (record["flags"], lost(record)) == ([], only(chapter))


def test_hidden_inputs_follow_the_seed(graded):
    text = "seen = []\ndef scores(query, key):\n    raise ValueError(query.double().sum().item())\n"
    messages = [graded(submission({"scores": text}), seed)["by"]["scores"]["message"] for seed in (1, 1, 2)]
    assert messages[0] == messages[1] != messages[2]


#: where a notebook might look for the answers of ``{chapter}``; each raises when there are none
SEARCHES = [
    "import attention_course.checks.{module} as answers",
    "from attention_course.checks.engine.registry import find_exercise as answers",
    "from attention_course.attention import scaled_dot_product_attention as answers",
    "import attention_course.scores as answers",
    "import attention_course\nanswers = attention_course.scaled_dot_product_attention",
    "import sys\nsys.path.insert(0, {root!r})\nimport importlib\n"
    "answers = importlib.import_module('attention_course.checks.{module}')",
    "answers = open({root!r} + '/attention_course/checks/{module}/__init__.py').read()",
    "answers = open({root!r} + '/exercises/source/{chapter}/{chapter}.ipynb').read()",
    "import glob, sys\nanswers = [one for place in (*sys.path, '/', '/course', {root!r})\n"
    "    for one in glob.glob(f'{place}/**/checks/{module}*', recursive=place != '/')][0]",
    "import gc\nanswers = [one for one in gc.get_objects() if type(one).__name__ == 'Exercise'][0]",
    "import sys\nanswers = [one for name, one in sys.modules.items() if name.endswith('judge')][0]",
    "import os\nanswers = open('/proc/' + str(os.getppid()) + '/environ').read() or 1 / 0",
]


@each_shape
def test_the_answers_are_not_to_be_found(graded, chapter):
    known = {"{root!r}": repr(str(ROOT)), "{chapter}": chapter, "{module}": MODULES[chapter]}
    searches = list(SEARCHES)
    for word, text in known.items():
        searches = [search.replace(word, text) for search in searches]
    first = (
        f"found = []\nfor search in {searches!r}:\n    try:\n        exec(search, {{}})\n"
        "    except (ImportError, AttributeError, OSError, LookupError, ZeroDivisionError):\n        continue\n"
        "    found.append(search)\nassert not found, found\n"
    )
    record = graded(submission(first=first, name=chapter), name=chapter)
    assert full(record)
    assert not [flag for flag in record["flags"] if "stopped" in flag]


@pytest.mark.parametrize("use", ["F.scaled_dot_product_attention(query, key, value)"])
def test_a_forbidden_function_is_flagged_and_gets_nothing(graded, use):
    text = (
        "import torch.nn.functional as F\ndef attention(query, key, value):\n"
        f"    c = {use}\n    w = softmax(scores(query, key))\n    return c, w\n"
    )
    record = graded(submission({"attention": text}))
    assert "attention" in lost(record)
    assert any("scaled_dot_product_attention" in flag for flag in record["flags"])


def test_what_computes_a_forbidden_function_is_named_in_the_text_too(assignment):
    text = "def softmax(scores):\n    return F.scaled_dot_product_attention(scores, scores, scores)\n"
    assert flags(assignment, text) == (
        "softmax: names scaled_dot_product_attention, which is not allowed there",
    )


#: a name put together, which no text shows
HIDDEN = (
    "def attention(query, key, value):\n"
    "    hidden = getattr(torch.nn.functional, 'scaled_dot_' + 'product_attention')\n"
    "    return hidden(query, key, value), softmax(scores(query, key))\n"
)


def test_a_forbidden_function_that_hides_from_one_watch_is_seen_by_the_other(graded):
    first = (
        "from torch.overrides import TorchFunctionMode\nTorchFunctionMode.__enter__ = lambda self: self\n"
        "TorchFunctionMode.__exit__ = lambda *a: None\n"
    )
    record = graded(submission({"attention": HIDDEN}, first=first))
    assert "calls torch's own scaled_dot_product_attention" in record["by"]["attention"]["message"]
    assert "cell 1: torch.overrides" in record["flags"]


def test_who_puts_the_watch_out_is_flagged(graded):
    """Nothing in a stranger's process can be kept from it; a person is told where to look."""
    first = (
        "import attention_course.checks.engine.observe as o\nclass Quiet:\n    seen = frozenset()\n"
        "    __init__ = __enter__ = __exit__ = lambda *a: None\n"
        "o.Watch, o.identical = Quiet, lambda *a: True\n"
    )
    record = graded(submission({"attention": HIDDEN}, first=first))
    assert full(record)
    assert "cell 1: uses o of the course's own code" in record["flags"]


# Ends and delays ------------------------------------------------------------------------------

ENDS = {
    "sys.exit": ("import sys; sys.exit(0)", "graded"),
    "os._exit": ("import os; os._exit(0)", "crashed"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "crashed"),
    # it spares whoever calls it; as an ordinary user it takes the sandbox's holder, and so all
    "kill everything": ("import os, signal; os.kill(-1, 9)", "graded" if os.geteuid() == 0 else "crashed"),
    "kill itself": ("import os, signal; os.kill(os.getpid(), 9)", "crashed"),
    "abort": ("import os; os.abort()", "crashed"),
    "close everything": ("import os; os.closerange(0, 1000)", "crashed"),
    "for ever": ("while True: pass", "timeout"),
    "for ever, whatever happens": (
        "exec('while True:\\n try:\\n  while True: pass\\n except BaseException: pass')", "timeout",
    ),
    "in C for ever": ("import re; re.match('(a+)+$', 'a' * 64 + 'b')", "timeout"),
    "sleep": ("import time; time.sleep(1000)", "timeout"),
    "no signals": (
        "import signal; signal.setitimer = None; signal.signal(14, signal.SIG_IGN)\n"
        "    while True: pass",
        "timeout",
    ),
    "input": ("input()", "graded"),
}  # fmt: skip


@pytest.fixture(scope="module")
def endings(graded):
    """Grades every ending of every chapter, as a function's and as a cell's: they wait side by side."""
    asked = {}
    for chapter in SHAPES:
        for name, (body, _) in ENDS.items():
            asked[chapter, name, "function"] = instead(chapter, f"{body}\n    return 1")
            asked[chapter, name, "cell"] = submission(first=f"if True:\n    {body}", name=chapter)
    asked[NAME, "loop below", "cell"] = submission({"scores": f"{SCORES}\nwhile True: pass"})
    with warnings.catch_warnings(), ThreadPoolExecutor(12) as pool:
        running = {
            key: pool.submit(graded, content, limits=SHORT, name=key[0]) for key, content in asked.items()
        }
        return {key: future.result() for key, future in running.items()}


@each_shape
@pytest.mark.parametrize("ending", ENDS)
def test_a_function_that_ends_or_never_ends_costs_itself_only(endings, chapter, ending):
    record, status = endings[chapter, ending, "function"], ENDS[ending][1]
    assert (record["status"], lost(record)) == (status, only(chapter))
    [name] = only(chapter)
    assert record["by"][name]["status"] == {"graded": "failed"}.get(status, status)


@each_shape
@pytest.mark.parametrize("ending", ENDS)
def test_a_cell_that_ends_or_never_ends_costs_itself_only(endings, chapter, ending):
    record = endings[chapter, ending, "cell"]
    assert (record["status"], lost(record)) == (ENDS[ending][1], set())


@pytest.mark.parametrize(
    "softmax", [SOFTMAX, "def softmax(scores):\n    return scores\n"], ids=["right", "wrong"]
)
def test_what_stands_below_the_last_verdict_is_not_run(graded, softmax):
    record = graded(submission({"softmax": softmax}, last="while True: pass"), limits=SHORT)
    assert record["status"] == "graded"


def test_the_course_looks_installed(graded):
    first = "import importlib.util\nassert importlib.util.find_spec('attention_course')\nHERE = True\n"
    assert graded(submission({"scores": f"HERE\n{SCORES}"}, first=first))["points"] == 10


def test_the_checks_are_found_below_the_course_s_own_name(graded):
    first = (
        "import attention_course.checks\nattention_course.checks.progress()\n"
        f"attention_course.checks.check('{NAME}.scores', 1)\nHERE = True\n"
    )
    assert full(graded(submission({"scores": f"HERE\n{SCORES}"}, first=first)))


def test_a_loop_below_the_answer_in_one_cell_leaves_the_answer(endings):
    record = endings[NAME, "loop below", "cell"]
    assert any("ran longer than 4 s" in flag for flag in record["flags"])
    assert (record["status"], record["points"]) == ("timeout", 10)


def test_what_does_not_end_in_the_time_that_is_left_is_told_by_the_whole_of_it(launcher):
    endless = "import signal\nsignal.signal(14, signal.SIG_IGN)\nwhile True: pass"
    with (
        remote.session(launcher, time.monotonic() + 0.54321) as notebook,
        pytest.raises(remote.Ended, match=f"took more than {LIMITS.total:g} s in all"),
    ):
        notebook.cell(1, endless)


def test_a_notebook_that_ends_again_and_again_is_given_up(graded):
    cells = [code("import os; os._exit(1)") for _ in range(30)]
    record = graded(notebook([*cells, *source()]))
    assert (record["status"], record["points"]) == ("crashed", 0)
    assert "Not judged" in record["exercises"][0]["message"]


# Resources ------------------------------------------------------------------------------------


@each_shape
def test_memory_is_bounded(graded, chapter):
    big = "x = [bytearray(1 << 24) for _ in range(100)]\n    return len(x)"
    record = graded(instead(chapter, big), name=chapter)
    assert lost(record) == only(chapter)
    [name] = only(chapter)
    assert "MemoryError" in record["by"][name]["message"]  # where it happens, not by a kill
    first = "import torch\nx = torch.ones(1 << 32)\n"
    assert full(graded(submission(first=first, last="x", name=chapter), name=chapter))


@each_shape
def test_memory_over_many_processes_is_bounded(graded, chapter):
    many = (
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n"
        "        x = bytearray(100 << 20)\n        time.sleep(60)\ntime.sleep(2)\n"
    )
    record = graded(submission(first=many, name=chapter), name=chapter)
    assert record["status"] == "crashed"
    assert full(record)


@each_shape
def test_disk_is_bounded(graded, chapter):
    text = (
        "n = 0\nimport errno\nfor path in ('/tmp', '/dev/shm'):\n  try:\n    for i in range(100):\n"
        "      with open(f'{path}/{i}', 'wb') as f:\n        f.write(bytes(1 << 20))\n      n += 1\n"
        "  except OSError as e: assert e.errno == errno.ENOSPC\nassert n <= 16, n\nFULL = True\n"
    )
    assert full(graded(instead(chapter, "FULL; return right(*inputs)", text), name=chapter))


@each_shape
def test_prints_without_end_cost_nothing(graded, chapter):
    text = (
        "import os, sys\nfor _ in range(300):\n    print('x' * (1 << 20))\n    os.write(2, b'y' * (1 << 16))"
    )
    assert full(graded(submission(first=text, name=chapter), name=chapter))


def test_a_result_that_is_too_large_is_told(graded):
    unused = "def attention(query, key, value): ..."
    text = "def scores(query, key):\n    return torch.zeros(1).expand(1 << 40)\n"
    record = graded(submission({"scores": text, "attention": unused}))
    assert "memory" in record["by"]["scores"]["message"]
    huge = "def scores(query, key):\n    return torch.zeros(17 << 20)\n"  # it can be made, but not sent
    record = graded(submission({"scores": huge, "attention": unused}))
    assert "more than a check can take" in record["by"]["scores"]["message"]


def inside(holder: int) -> int:
    """How many processes there are in a sandbox."""
    count, own = 0, os.readlink(f"/proc/{holder}/ns/pid")
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        with suppress(OSError):
            count += os.readlink(path) == own
    return count


def test_a_fork_bomb_leaves_its_neighbours_alone(graded, launcher):
    bomb = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass"
    deadline = time.monotonic() + 40
    with remote.session(launcher, deadline) as neighbour, remote.session(launcher, deadline) as bomber:
        wire.send(bomber.channel, {"do": "cell", "number": 1, "source": bomb, "seconds": 30}, [], 5.0)
        while inside(bomber.holder) < LIMITS.processes - 4:  # it has all that it can get
            assert time.monotonic() < deadline - 10
            time.sleep(0.05)
        assert (
            neighbour.cell(1, "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()")
            is None
        )
        assert inside(bomber.holder) >= LIMITS.processes - 4
        assert graded(submission())["points"] == 10


def test_processes_are_bounded(graded):
    text = (
        "import os, time\nn = 0\nwhile n < 100:\n    try:\n        if os.fork() == 0:\n"
        "            time.sleep(60)\n    except OSError:\n        break\n    n += 1\n"
        "assert 10 < n < 64\nFEW = True\n"
    )
    assert graded(submission({"scores": f"FEW\n{SCORES}"}, first=text))["points"] == 10


def test_an_installed_course_is_hidden(assignment, monkeypatch):
    """Where the course lies among what Python needs, as after pip install, it is covered up."""
    everything = (*sandbox.visible(), str(ROOT))
    monkeypatch.setattr(sandbox, "visible", lambda: everything)
    there, covered = str(ROOT / "tests"), str(ROOT / "attention_course")
    text = f"import os\nassert os.path.isdir({there!r})\nassert not os.listdir({covered!r})"
    with (
        remote.launcher(assignment.files, assignment.preload, LIMITS) as launcher,
        remote.session(launcher, time.monotonic() + 60) as notebook,
    ):
        assert notebook.cell(1, text) is None


def test_python_may_lie_where_the_notebook_has_its_disk(assignment, monkeypatch, request):
    place = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    (place / "there").touch()
    everything = (*sandbox.visible(), str(place))
    monkeypatch.setattr(sandbox, "visible", lambda: everything)
    with (
        remote.launcher(assignment.files, assignment.preload, LIMITS) as launcher,
        remote.session(launcher, time.monotonic() + 60) as notebook,
    ):
        assert notebook.cell(1, f"open({str(place / 'there')!r})\nopen('own', 'w')") is None


def test_a_sandbox_without_python_is_the_grader_s_failure(assignment, monkeypatch):
    here = tuple(path for path in sandbox.visible() if path not in (sys.prefix, sys.base_prefix))
    monkeypatch.setattr(sandbox, "visible", lambda: here)
    with (
        remote.launcher(assignment.files, assignment.preload, LIMITS) as launcher,
        pytest.raises(sandbox.SandboxError, match="does not start"),
    ):
        grade.grade(submission(), assignment, SEED, launcher)


def children(process: int) -> set[int]:
    return set(map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split()))


def test_a_process_of_ours_that_dies_is_the_grader_s_failure(launcher):
    """Who waits for a notebook's end stands outside of its sandbox; killed, it says nothing."""
    before = children(launcher.process.pid)
    with remote.session(launcher, time.monotonic() + 30) as notebook:
        [waits] = children(launcher.process.pid) - before
        os.kill(waits, 9)
        with pytest.raises(sandbox.SandboxError, match="waits for a notebook's end is gone"):
            notebook.cell(1, "import os; os._exit(0)")


def test_an_error_of_whoever_grades_is_not_swallowed():
    with pytest.raises(OSError, match="no space left"), remote.launcher({}, (), LIMITS):
        raise OSError("no space left")


def test_without_bubblewrap_no_descriptor_is_left_open(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "/nowhere")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(sandbox.SandboxError), sandbox.room(tmp_path, LIMITS):
        pass
    assert os.listdir("/proc/self/fd") == before


@each_shape
def test_there_is_no_network(graded, chapter):
    text = (
        "import socket\nfor family, to in ((socket.AF_INET, ('127.0.0.1', 22)), "
        "(socket.AF_INET, ('192.0.2.1', 53))):\n"
        "    s = socket.socket(family)\n    s.settimeout(1)\n    try:\n        s.connect(to)\n"
        "    except OSError:\n        continue\n    raise SystemExit\n"
        "assert [name for _, name in socket.if_nameindex()] in (['lo'], [])\nALONE = True\n"
    )
    assert full(graded(instead(chapter, "ALONE; return right(*inputs)", text), name=chapter))


@each_shape
def test_nothing_survives_its_notebook(graded, chapter):
    marker = f"orphan-{os.getpid()}"
    orphan = (
        "import glob, os, time\nfor _ in range(30):\n    if os.fork() == 0:\n        os.setsid()\n"
        f"        os.execv('/bin/sh', ['sh', '-c', 'sleep 60; : {marker}'])\n"
        "lines = []\nwhile len(lines) < 30:\n    time.sleep(0.1)\n"
        "    lines = [one for one in glob.glob('/proc/[0-9]*/cmdline') if 'sleep 60' in open(one).read()]\n"
        "ORPHANS = True\n"
    )
    assert full(graded(instead(chapter, "ORPHANS; return right(*inputs)", orphan), name=chapter))
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [line for line in running if marker.encode() in line and b"sleep" in line]


@each_shape
def test_words_of_a_notebook_are_printable_and_short(graded, chapter):
    [name] = only(chapter)
    text = "raise ValueError('<script>\\x1b[31m\\x00' + 'x' * 10**6)"
    message = graded(instead(chapter, text), name=chapter)["by"][name]["message"]
    assert "\x1b" not in message and "\x00" not in message
    assert len(message) < 1000


def test_the_same_submission_gets_the_same_record(graded):
    content = submission(
        {"scores": "def scores(query, key):\n    return torch.rand(3)\n", "softmax": SOFTMAX}
    )
    assert graded(content) == graded(content)


# More ways in -----------------------------------------------------------------------------------


@pytest.mark.skipif(not seccomp.known(), reason="no filter of system calls for this machine")
@pytest.mark.parametrize(
    "attempt",
    [
        "os.memfd_create('x')",
        "libc.shmget(0, 1 << 20, 0o1600) >= 0 or refuse()",
        "libc.unshare(0x10000000) == 0 or refuse()",
        "libc.ptrace(0, 0, 0, 0) == 0 or refuse()",
        "libc.prctl(4, 0, 0, 0, 0) == 0 or refuse()",
        "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0 or refuse()",
        "libc.syscall(250, 1, None) >= 0 or refuse()",
        "libc.syscall(425, 1, None) >= 0 or refuse()",
        "mmap.mmap(-1, 1 << 20)",
        "mmap.mmap(-1, 1 << 20, flags=mmap.MAP_ANONYMOUS | 3)",  # shared, validated
    ],
)
def test_calls_that_get_around_the_limits_are_refused(graded, attempt):
    first = (
        "import ctypes, mmap, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "def refuse():\n    raise OSError(ctypes.get_errno(), 'refused')\n"
        f"try:\n    {attempt}\nexcept OSError as error:\n    assert error.errno == 1, error\n    REFUSED = True\n"
    )
    assert graded(submission({"scores": f"REFUSED\n{SCORES}"}, first=first))["points"] == 10


def test_no_memory_is_shared_through_a_device(graded):
    first = (
        "import mmap, os\n"
        "try:\n    mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)\nexcept OSError:\n    REFUSED = True\n"
    )
    assert full(graded(submission({"scores": f"REFUSED\n{SCORES}"}, first=first)))


def test_memory_that_is_counted_can_be_mapped(graded):
    """Private, or a file of a disk that is bounded itself."""
    first = (
        "import mmap, torch\nmmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)[:3] = b'abc'\n"
        "with open('own', 'w+b') as file:\n    file.truncate(1 << 20)\n"
        "    mmap.mmap(file.fileno(), 1 << 20)[:3] = b'abc'\n"
        "assert torch.ones(3).share_memory_().sum() == 3\nMAPPED = True\n"
    )
    assert full(graded(submission({"scores": f"MAPPED\n{SCORES}"}, first=first)))


def test_a_trickle_of_bytes_hides_no_memory(graded):
    text = (
        "import attention_course.grading.wire as w, os, time\n"
        "def send(channel, header, tensors, seconds):\n"
        "    for byte in w.pack(header, tensors):\n        channel.send(bytes([byte]))\n        time.sleep(0.02)\n"
        "w.send = send\nfor _ in range(8):\n    if os.fork() == 0:\n"
        "        x = bytearray(150 << 20)\n        time.sleep(60)\n"
    )
    assert graded(submission(first=text))["status"] == "crashed"


STRANGE = {
    "nested gradients": "{'kind': 'Tensor', 'module': 'torch', 'tensor': True, 'layout': 'nested', 'device': 'cpu'}",
    "sparse gradients": "{'kind': 'Tensor', 'module': 'torch', 'tensor': True, 'layout': 'coo', 'device': 'cpu'}",
    "a number": "7",
}


@pytest.mark.parametrize("gradient", STRANGE.values(), ids=list(STRANGE))
def test_no_student_can_choose_to_be_the_grader_s_failure(graded, gradient):
    first = (
        "import attention_course.grading.wire as w\npack = w.pack\n"
        f"def strange(header, tensors, *bounds):\n    if 'gradients' in header:\n        header['gradients'] = [{gradient}] * 2\n"
        "    return pack(header, tensors, *bounds)\nw.pack = strange"
    )
    record = graded(submission(first=first))
    assert record["status"] == "refused"


def test_a_shape_that_cannot_be_is_refused(graded):
    first = (
        "import attention_course.grading.wire as w, json, struct\n"
        "shape = [67108864] * 15 + [0]\n"
        "text = json.dumps({'result': {'tensor': 0}, 'changed': [], 'called': [], 'tensors':\n"
        "    [{'dtype': 'float32', 'shape': shape}]}).encode()\n"
        "def scores(query, key):\n    w.pack = lambda *a: struct.pack('!IQ', len(text), 0) + text\n    return query\n"
    )
    assert graded(submission({"scores": first}))["status"] == "refused"


def test_who_closes_the_channel_is_told_so(graded):
    text = "def softmax(scores):\n    import os, time\n    os.close(3)\n    time.sleep(100)\n"
    record = graded(submission({"softmax": text, "attention": OWN}), limits=SHORT)
    assert lost(record) == {"softmax"}
    assert record["by"]["softmax"]["status"] == "refused"


def test_an_answer_may_be_a_named_tuple(graded):
    text = (
        "from typing import NamedTuple\nclass Out(NamedTuple):\n    context: object\n    weights: object\n"
        "def attention(query, key, value):\n    w = softmax(scores(query, key))\n    return Out(w @ value, w)\n"
    )
    assert graded(submission({"attention": text}))["points"] == 10


@pytest.mark.parametrize(
    "start",
    [
        "%%time\n%matplotlib inline",
        "%timeit -n 3 -r 1 1 + 1",
        "import asyncio\nawait asyncio.sleep(0)",
        "from IPython import get_ipython\nget_ipython().run_line_magic('matplotlib', 'inline')",
        "from __future__ import annotations",
        "from attention_course.checks import CheckFailed, check, hint",
        "import torch\nreally = torch.compile(lambda x: x + 1)(torch.zeros(1))",
    ],
)
def test_what_works_in_jupyter_works_here(graded, start):
    assert graded(submission({"scores": f"{start}\n{SCORES}"}))["points"] == 10


def test_the_future_of_an_earlier_cell_holds(graded):
    text = SCORES.replace("(query, key)", "(query: Nowhere, key: Nothing)")
    assert graded(submission({"scores": text}, first="from __future__ import annotations"))["points"] == 10


def test_a_function_of_another_name_counts_if_its_check_was_given_it(graded):
    cells = source()
    for cell in cells:
        text = "".join(cell["source"])
        if grade_id(cell) == "softmax-jacobian":
            cell["source"] = text.replace("def softmax_jacobian", "def my_jacobian")
        if grade_id(cell) == "check-softmax-jacobian":
            cell["source"] = text.replace(", softmax_jacobian)", ", my_jacobian)")
    assert graded(notebook(cells))["points"] == 10


def test_an_experiment_after_a_passed_check_takes_nothing_away(graded):
    last = f"scores = lambda q, k: q @ k.mT\ncheck('{NAME}.scores', scores)"
    assert graded(submission(last=last))["points"] == 10


#: another answer, and its check, as it is tried out at a notebook's end
TRIAL = f"softmax_jacobian = lambda weights: weights\ncheck('{NAME}.softmax_jacobian', softmax_jacobian)"


@pytest.mark.parametrize("marked", [True, False], ids=["as handed out", "without its mark"])
def test_many_experiments_after_a_passed_check_take_nothing_away(graded, marked):
    cells = source()
    for cell in cells:
        if not marked and grade_id(cell) == "check-softmax-jacobian":
            cell["metadata"] = {}
    assert full(graded(notebook([*cells, *[code(TRIAL)] * 6])))


def test_a_marked_check_in_other_words_counts_above_experiments(graded):
    loop = f"for name in ('softmax_jacobian',):\n    check('{NAME}.' + name, softmax_jacobian)"
    assert full(graded(submission({"check-softmax-jacobian": loop}, last=TRIAL)))


def test_a_check_that_is_copied_without_end_is_judged_a_few_times(assignment):
    call = f"check('{NAME}.scores', scores)"
    judged = plan([Cell("code", call, "check-scores")] * 500, assignment).judged[f"{NAME}.scores"]
    assert judged[0] == 0 and judged[-1] == 499 and len(judged) < 12


def test_a_cell_that_stopped_is_flagged(graded):
    record = graded(submission(first="import einops_that_is_not_there\nuseful = 1"))
    assert any(flag.startswith("cell 1: stopped with ModuleNotFoundError") for flag in record["flags"])


@pytest.mark.parametrize(
    "detour",
    [
        "torch._softmax(scores, -1, False)",
        "getattr(torch, 'soft' + 'max')(scores, -1)",
        "__import__('torch').zeros(1)",
        "eval('torch.zeros(1)')",
    ],
)
def test_detours_are_flagged(graded, detour):
    record = graded(submission({"softmax": f"def softmax(scores):\n    return {detour}\n"}))
    assert any(flag.startswith("cell ") for flag in record["flags"])


def flags(assignment, text: str) -> tuple[str, ...]:
    """Of a notebook that is this one cell."""
    return plan([Cell("code", text, None)], assignment).flags


OF_THE_COURSE = [
    "import attention_course.checks.engine.observe as o\no.Watch = 1",
    "import torch, attention_course.checks.engine.observe as o\no.Watch = 1",
    "if 1: import attention_course.checks.engine.observe as o; o.Watch = 1",
    "import attention_course . checks . engine . observe as o\no.Watch = 1",
    "from attention_course.checks.engine import (  # nothing\n    observe as o,\n)\no.Watch = 1",
    "%foo (\nfrom attention_course.checks.engine import (  # nothing\n    observe as o)\no.Watch = 1",
    "from attention_course.checks.engine.watch import Watch as o\no.seen = 1",
    "from attention_course import checks as o\no.engine.observe.Watch = 1",
    "import attention_course.lab.data.pairs\nattention_course.checks.engine.observe.Watch = 1",
    "from attention_course.checks.engine.observe import *\nWatch.seen = 1",
]


@pytest.mark.parametrize("text", OF_THE_COURSE)
def test_of_the_checks_only_what_is_offered_is_no_flag(assignment, text):
    [flag] = flags(assignment, text)
    assert re.fullmatch(r"cell 1: uses (o|attention_course) of the course's own code", flag)


WAYS_AROUND = {
    "frames": "import sys\nsys._getframe(1)",
    "a traceback's frame": "error.tb_frame",
    "a frame's names": "frame.f_back.f_globals",
    "gc": "import gc\ngc.get_objects()",
    "inspect": "from inspect import stack",
    "ctypes": "import ctypes",
    "vars": "vars(torch)",
    "globals": "names = globals\nnames()['pack' + 'aged']",
    "locals": "locals()",
    "modules": "from sys import modules",
    "a function's names": "softmax.__globals__",
    "a wider letter": "\uff47lobals()",
    "a number sign in a string": "'#'; globals()",
    "in an f-string": "f'{globals()}'",
    "below a comment that a carriage return ends": "# nothing\rglobals()",
    "over two lines": "torch \\\n . _softmax(x, -1, False)",
    "below a magic that opens a string": '%foo """\nglobals()\n%foo """',
    "a thread": "from threading import Thread",
    "a lower thread": "import _thread as t",
    "a pool": "from concurrent.futures import ThreadPoolExecutor",
    "torch's processes": "import torch.multiprocessing as mp",
    "asyncio's thread": "await asyncio.to_thread(torch.softmax, x, -1)",
    "a fork": "from os import fork",
    "a child": "os.system('python')",
    "modes below": "from torch.utils import _python_dispatch as p",
    "a code object": "import builtins\nbuiltins.eval('1')",
}


@pytest.mark.parametrize("text", WAYS_AROUND.values(), ids=list(WAYS_AROUND))
def test_ways_around_the_watch_are_flagged(assignment, text):
    assert len(flags(assignment, text)) == 1


def test_what_is_no_way_around_is_no_flag(assignment):
    text = (
        "from attention_course.checks import CheckFailed, check, hint, inputs, progress\n"
        "from attention_course.checks import (\n    check as again,\n)\n"
        "from attention_course.lab.data.example import TOKENS\nagain, TOKENS, check\n"
        'def look(model):\n    """Inspect all modules: globals(), torch._softmax."""\n'
        "    model.eval()  # eval(), vars and gc\n    return [type(one) for one in model.modules()]\n"
        "re.compile('gc'); torch.compile(look)\n"
    )
    assert flags(assignment, text) == ()


def test_flags_are_few_and_short(assignment):
    names = ", ".join(f"name_{number}" for number in range(3000))
    cells = (
        Cell("code", f"from attention_course import {names}", None),
        Cell("code", f"softmax = 1\n{names}\n" + "import " * 20_000, None),
    )
    found = plan(cells, assignment).flags
    assert 0 < len(found) <= 20 and all(len(flag) <= 200 for flag in found)


def test_cells_that_stopped_are_flagged_a_few_times_only(graded):
    record = graded(notebook([*(code("1 / 0") for _ in range(100)), *source()]))
    assert (record["points"], len(record["flags"])) == (10, 20)


def test_windows_line_endings_are_no_flag(graded):
    cells = source()
    for cell in cells:
        cell["source"] = "".join(cell["source"]).replace("\n", "\r\n")
    record = graded(notebook(cells))
    assert (record["points"], record["flags"]) == (10, [])


def test_the_instructor_s_folders_are_covered(assignment, monkeypatch):
    everything = (*sandbox.visible(), str(ROOT))
    monkeypatch.setattr(sandbox, "visible", lambda: everything)
    secret = str(ROOT / "exercises")
    with (
        remote.launcher(assignment.files, assignment.preload, LIMITS, hidden=[secret]) as launcher,
        remote.session(launcher, time.monotonic() + 60) as notebook,
    ):
        assert notebook.cell(1, f"import os\nassert os.listdir({secret!r}) == []") is None


def test_the_instructor_s_files_are_covered_too(assignment, monkeypatch, request):
    """A zip of submissions, also within a folder that is covered itself."""
    place = Path(tempfile.mkdtemp())
    request.addfinalizer(lambda: shutil.rmtree(place))
    place.chmod(0o755)
    (place / "below").mkdir()
    for name in ("there", "class.zip", "below/class.zip"):
        (place / name).write_text("secret")
    everything = (*sandbox.visible(), str(place))
    monkeypatch.setattr(sandbox, "visible", lambda: everything)
    hidden = [str(place / name) for name in ("class.zip", "below/class.zip", "below")]
    text = (
        f"import os\nplace = {str(place)!r}\nassert open(place + '/there').read() == 'secret'\n"
        "try:\n    seen = open(place + '/class.zip').read()\nexcept OSError:\n    seen = ''\n"
        "assert not seen and not os.listdir(place + '/below')\n"
    )
    with (
        remote.launcher(assignment.files, assignment.preload, LIMITS, hidden=hidden) as launcher,
        remote.session(launcher, time.monotonic() + 60) as notebook,
    ):
        assert notebook.cell(1, text) is None


def test_what_a_notebook_sees_does_not_tell_the_seed(assignment):
    import torch

    from attention_course.checks.engine.judge import _cotangents

    [cotangent] = _cotangents((torch.zeros(4),), 7)
    assert not torch.equal(cotangent, torch.randn(4, generator=torch.Generator().manual_seed(7)))
