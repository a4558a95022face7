"""Who copied: renamed copies of every exercise are found, and answers that are somebody's own are not."""

import ast
import json
import random
from pathlib import Path

import pytest

from attention_course.grading import similarity
from attention_course.grading.similarity import MIN_FINGERPRINTS, Pair, fingerprints, pairs

EXERCISES = Path(__file__).parents[2] / "exercises"
NAMES = sorted(path.name for path in (EXERCISES / "source").iterdir() if path.is_dir())


def code(kind, name):
    notebook = json.loads((EXERCISES / kind / name / f"{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


class Renamed(ast.NodeTransformer):
    """What a copier does to a function: other names, no annotations, a docstring of one's own."""

    def __init__(self, names):
        self.names = {name: f"thing_{number}" for number, name in enumerate(sorted(names))}

    def visit_Name(self, node):
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node):
        node.arg, node.annotation = self.names.get(node.arg, node.arg), None
        return node

    def visit_FunctionDef(self, node):
        self.generic_visit(node)
        node.returns = None
        if ast.get_docstring(node):
            node.body[0] = ast.parse("'My own words.'").body[0]
        return node


def disguised(source):
    """The same code renamed, laid out anew (brackets added and dropped), with other comments."""
    if "%pip" in source:  # the cell that installs the package, and no Python
        return source
    tree = ast.parse(source)
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    stored = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    lines = ast.unparse(Renamed(arguments | stored).visit(tree)).split("\n")
    return "\n\n".join(f"# I think\n{line}" if line.startswith("    ") else line for line in lines)


# Written for these tests from the exercises' texts, each as another person may go about it.
OWN_ANSWERS = {
    "03_scaled_dot_product": [
        """
def scores(query, key):
    products = torch.einsum("...qd,...kd->...qk", query, key)
    return products / math.sqrt(key.size(-1))
""",
        """
def softmax(scores):
    highest = scores.max(dim=-1, keepdim=True).values
    shifted = (scores - highest).exp()
    total = shifted.sum(dim=-1, keepdim=True)
    return torch.div(shifted, total)
""",
        """
def attention(query, key, value):
    alpha = softmax(scores(query, key))
    context = torch.matmul(alpha, value)
    return context, alpha
""",
        """
def self_attention(x, w_query, w_key, w_value):
    q = torch.matmul(x, w_query)
    k = torch.matmul(x, w_key)
    v = torch.matmul(x, w_value)
    return attention(q, k, v)[0]
""",
        """
def softmax_jacobian(weights):
    n = weights.shape[-1]
    eye = torch.eye(n, dtype=weights.dtype)
    return weights.unsqueeze(-1) * (eye - weights.unsqueeze(-2))
""",
    ],
    "06_positions": [
        """
def add_positions(x):
    batch, length, width = x.shape
    encoding = torch.zeros(length, width, dtype=x.dtype)
    position = torch.arange(length, dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, width, 2).float() * (-math.log(BASE) / width))
    encoding[:, 0::2] = torch.sin(position * rate)
    encoding[:, 1::2] = torch.cos(position * rate)
    return x + encoding
""",
        """
def shift(table, k):
    moved = torch.empty_like(table)
    for i in range(table.shape[-1] // 2):
        w = BASE ** (-2 * i / table.shape[-1])
        c, s = torch.cos(k * w), torch.sin(k * w)
        even, odd = table[..., 2 * i], table[..., 2 * i + 1]
        moved[..., 2 * i] = c * even + s * odd
        moved[..., 2 * i + 1] = c * odd - s * even
    return moved
""",
        """
def rotate(x, start):
    half = x.shape[-1] // 2
    theta = torch.pow(torch.tensor(float(BASE)), -torch.arange(half) / half)
    place = torch.arange(x.shape[-2]) + start
    phase = torch.polar(torch.ones(len(place), half), torch.outer(place.float(), theta))
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2).contiguous())
    return torch.view_as_real(pairs * phase).reshape(x.shape)
""",
        """
def to_half(w):
    width = w.shape[-1] // NUM_HEADS
    order = []
    for head in range(NUM_HEADS):
        offset = head * width
        order.extend(range(offset, offset + width, 2))
        order.extend(range(offset + 1, offset + width, 2))
    return w[..., order]
""",
        """
def alibi_weights(scores):
    heads, rows, columns = scores.size(-3), scores.size(-2), scores.size(-1)
    m = torch.tensor([2 ** (-8 * (i + 1) / heads) for i in range(heads)])
    i = torch.arange(rows).view(-1, 1) + columns - rows
    j = torch.arange(columns).view(1, -1)
    penalty = m.view(-1, 1, 1) * torch.abs(i - j)
    return torch.softmax(scores - penalty, dim=-1)
""",
    ],
}


def together(first, second, starter=()):
    """The pairs among two students who handed in the code cells ``first`` and ``second``."""
    return pairs({"first": fingerprints(first), "second": fingerprints(second)}, fingerprints(starter))


@pytest.mark.parametrize("name", NAMES)
def test_a_renamed_reformatted_and_with_other_comments_copy_is_found(name):
    [pair] = together(code("source", name), list(map(disguised, code("source", name))), code("release", name))
    assert pair.share > 0.9


@pytest.mark.parametrize("name", OWN_ANSWERS)
def test_an_answer_of_ones_own_is_not_found(name):
    mine, starter = OWN_ANSWERS[name], fingerprints(code("release", name))
    assert len(fingerprints(mine) - starter) >= MIN_FINGERPRINTS
    assert not together(mine, code("source", name), code("release", name))
    assert not fingerprints(mine) & fingerprints(code("source", name)) - starter


@pytest.mark.parametrize("name", NAMES)
def test_two_who_did_nothing_did_not_copy(name):
    assert not together(code("release", name), code("release", name), code("release", name))


# What counts ----------------------------------------------------------------------------------


def written(seed, lines=30):
    """Code that nobody else writes."""
    draw = random.Random(seed)
    methods = ("sum", "mean", "exp", "log", "view", "mT", "add", "mul", "sub", "div")
    calls = [
        f"x.{draw.choice(methods)}({draw.randrange(50)}, x[{draw.randrange(50)}])" for _ in range(2 * lines)
    ]
    return "\n".join(f"x = {a} + {b}" for a, b in zip(calls[::2], calls[1::2], strict=True))


def test_code_of_two_hands_is_told_apart():
    assert not together([written(1)], [written(2)])
    assert together([written(1)], [written(1)]) == [
        Pair("first", "second", 1.0, len(fingerprints([written(1)])))
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = f(b, c)", "much_longer = of(other, names)"),
        ("x = 1  # mine", "x = 1\n# his"),
        ("x = 'a'", 'x = f"something {else_} "'),
        ("x = 'a'", "x = ('a'\n  'b')"),
        ("x = [1, 2]", "x = [\n    1,\n    2,\n]"),
        ("x = a, b", "x = (a, b)"),
        ("x = a @ b / c", "x = ((a @ b) / \\\n  c)"),
        ("'''Says this.'''\nx = 1", "x = 1"),
        ("x = 1", "x = 1\n'no docstring,\\' but alone'\n"),
        (
            "def f(x: int) -> int:\n  '''Doc.'''\n  return x",
            "def g(first, second=lambda: 3):\n  return first",
        ),
        ("class A:\n  def f(s):\n    s.x = s.f()", "class B:\n  def g(self):\n    self.value = self.g()"),
    ],
)
def test_names_comments_strings_and_layout_do_not_count(one, other, monkeypatch):
    monkeypatch.setattr(similarity, "WINDOW", 1)  # every hash is kept, and shows what differs
    long = written(1)
    assert fingerprints([f"{one}\n{long}"]) == fingerprints([f"{other}\n{long}"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x = a.sin()", "x = a.cos()"),
        ("x = a + 1", "x = a + 2"),
        ("x = a + b", "x = a - b"),
        ("x = sum(a)", "x = len(a)"),
        ("x = f(a)", "x = f(a), a"),
        ("x = 'a'", "x = a"),
        ("x = f(a)(b)", "x = f(a) b"),
        ("def f(x):\n  return x", "x = x"),
    ],
)
def test_what_is_called_and_computed_counts(one, other, monkeypatch):
    monkeypatch.setattr(similarity, "WINDOW", 1)
    long = written(1)
    assert fingerprints([f"{long}\n{one}\n{long}"]) != fingerprints([f"{long}\n{other}\n{long}"])


def test_the_order_of_cells_and_functions_does_not_count():
    one, two = (f"def f(x):\n    {written(n).replace(chr(10), chr(10) + '    ')}\n" for n in (1, 2))
    assert fingerprints([one, two]) == fingerprints([two, one]) == fingerprints([two + one])


def test_a_copy_with_additions_or_a_part_left_out_is_found():
    assert together([written(1)], [written(1), written(2)])
    assert together([written(1), written(2)], [written(2)])


def test_less_than_the_threshold_is_no_pair():
    half = [written(1), written(2)], [written(1), written(3)]
    assert not together(*half)
    students = {"b": fingerprints(half[0]), "a": fingerprints(half[1])}
    [pair] = pairs(students, frozenset(), threshold=0.4)
    assert (pair.first, pair.second) == ("a", "b")
    assert 0.4 < pair.share < 0.6


def test_answers_too_short_to_tell_are_not_compared():
    few, enough = (frozenset(range(n)) for n in (MIN_FINGERPRINTS - 1, MIN_FINGERPRINTS))
    assert not pairs({"a": few, "b": few}, frozenset())
    assert not pairs({"a": few, "b": enough}, frozenset())
    assert pairs({"a": enough, "b": enough}, frozenset())


def test_what_the_starter_has_is_nobodys_own():
    assert together([written(1)], [written(1)])
    assert not together([written(1)], [written(1)], [written(1)])


def test_what_much_of_a_class_writes_is_nobodys_own():
    def students(number):
        return {str(n): frozenset(range(100)) | {1000 + n} for n in range(number)}

    assert len(pairs(students(3), frozenset())) == 3
    assert not pairs(students(4), frozenset())
    many = students(4) | {str(n): frozenset({n}) for n in range(4, 12)}
    assert len(pairs(many, frozenset())) == 6  # 4 of 12 are no more than a third
    del many["11"]
    assert not pairs(many, frozenset())


def test_an_answer_that_many_hand_in_unchanged_does_not_pass_for_common_usage():
    leaked = {str(n): frozenset(range(100)) for n in range(10)}
    assert len(pairs(leaked, frozenset())) == 45


def test_what_is_common_stays_common_however_many_hand_in_one_answer():
    slips = {str(n): frozenset(range(100)) | {1000 + n} for n in range(8)}
    assert not pairs(slips, frozenset())
    alike = {f"same {n}": frozenset(range(100)) | {2000} for n in range(30)}
    assert not pairs(slips | alike, frozenset())


def test_the_most_alike_come_first():
    whole = frozenset(range(100))
    students = {"c": whole, "a": whole, "b": frozenset(range(10, 100)) | frozenset(range(200, 210))}
    found = pairs(students, frozenset())
    assert [(pair.first, pair.second, pair.share) for pair in found] == [
        ("a", "c", 1.0),
        ("a", "b", 0.9),
        ("b", "c", 0.9),
    ]


# What strangers write -------------------------------------------------------------------------


def test_fingerprints_are_the_same_on_every_machine():
    assert fingerprints(["a = b.sum(-1) + c[0] * 2"]) == {2132947685960489954}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\ud800\ufeff\u2028" * 9,
        '"""' + "\\" * 30_001,
        '"' * 30_001,
        "rb'''" + "'\n" * 30_000,
        "((" * 30_000,
        "[)}" * 15_000,
        "a" * 60_000,
        "1" * 60_000,
        "def " * 15_000,
        "def f(" * 10_000,
        ". = " * 15_000,
        "f'{x!r:{'a'}}' %pip !ls ?x $",
    ],
    ids=range(13),
)
def test_no_text_is_too_strange(text):
    assert fingerprints([text, written(1)]) >= (
        fingerprints([written(1)]) if len(text) < 100 else frozenset()
    )


def test_only_the_beginning_of_an_endless_answer_are_read(monkeypatch):
    whole = fingerprints([written(1)])
    monkeypatch.setattr(similarity, "MAX_CHARACTERS", 500)
    assert 0 < len(fingerprints([written(1)])) < len(whole) / 2
    assert fingerprints([written(1), written(2, lines=200)]) == fingerprints([written(1)])
