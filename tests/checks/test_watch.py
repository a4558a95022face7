"""A function that a task forbids is noticed by every door that leads to it, and by no other."""

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from attention_course.checks import chapters
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.observe import observe
from attention_course.checks.engine.watch import OPERATIONS, Watch, closed, plain_name

WATCHED = [one for chapter in chapters() for one in chapter.exercises if one.forbidden]
FORBIDDEN = sorted({name for one in WATCHED for name in one.forbidden})


def square(generator=None):
    return torch.randn(2, 3, 4, generator=generator)


def scripted(expression: str):
    source = f"def function(x):\n    return {expression}\n"
    unit = torch.jit.CompilationUnit(source)
    return unit.function


def traced(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still works, and learners know it
        return torch.jit.trace(function, square())


def heads(x, **more):
    return F.multi_head_attention_forward(
        x, x, x, 4, 2, torch.eye(4).repeat(3, 1), None, None, None, False, 0.0, torch.eye(4), None, **more
    )


def whole_layer(x):
    """torch's own encoder layer, which takes one operation where no gradient is asked for."""
    with torch.no_grad():
        return torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()(x)


def native_layer(x):
    matrix, square, norm = torch.eye(4).repeat(3, 1), torch.eye(4), torch.ones(4)
    own = matrix, torch.zeros(12), square, norm
    with torch.no_grad():
        return torch._transformer_encoder_layer_fwd(
            x, 4, 2, *own, False, False, 1e-5, norm, norm, norm, norm, square, norm, square, norm
        )


WORDS = torch.tensor([0, 2, 1])
#: name -> ways to it that bear another name, or none
DOORS = {
    "softmax": {
        "_softmax": lambda x: torch._softmax(x, -1, False),
        "ops": lambda x: torch.ops.aten._softmax(x, -1, False),
        "an overload": lambda x: torch.ops.aten.softmax.int(x, -1),
        "special": lambda x: torch.special.softmax(x, -1),
        "scripted": scripted("x.softmax(-1)"),
        "safe": lambda x: torch._safe_softmax(x, -1),
        "a module": torch.nn.Softmax(-1),
        "softmin": lambda x: F.softmin(-x, -1),
        "masked": lambda x: torch._masked_softmax(x, torch.zeros(2, 3, 4).bool(), -1),
        "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
        "attention, four axes": lambda x: F.scaled_dot_product_attention(x[None], x[None], torch.eye(3)),
        "attention of heads": partial(heads, need_weights=False),
    },
    "log_softmax": {
        "_log_softmax": lambda x: torch._log_softmax(x, -1, False), "a module": torch.nn.LogSoftmax(-1),
    },
    "logsumexp": {
        "special": lambda x: torch.special.logsumexp(x, -1), "scripted": scripted("x.logsumexp(-1)"),
    },
    "scaled_dot_product_attention": {
        "traced": traced(lambda x: F.scaled_dot_product_attention(x, x, x)),
        "with slopes": lambda x: F.scaled_dot_product_attention(x.requires_grad_(), x, x),
        "four axes": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        "a mask": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(3, 3).bool()),
        "double": lambda x: F.scaled_dot_product_attention(*[x.double()] * 3),
        "heads, with weights": heads,
        "heads": partial(heads, need_weights=False),
    },
    "multi_head_attention_forward": {
        "with weights": heads, "without": partial(heads, need_weights=False),
        "a whole layer": whole_layer, "a whole layer, natively": native_layer,
    },
    "nll_loss": {
        "ops": lambda x: torch.ops.aten.nll_loss_forward(x[0], WORDS, None, 1, -100)[0],
        "a module": lambda x: torch.nn.NLLLoss()(x[0], WORDS),
    },
    "cross_entropy": {"a module": lambda x: torch.nn.CrossEntropyLoss()(x[0], WORDS)},
    "cosine_similarity": {"a module": torch.nn.CosineSimilarity(-1).forward},
    "layer_norm": {
        "native": lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5)[0],
        "a module": torch.nn.LayerNorm(4),
        "groups, natively": lambda x: torch.native_group_norm(x, None, None, 2, 3, 4, 1, 1e-5)[0],
        "one group": lambda x: F.group_norm(x.reshape(6, 4, 1), 1),
        "a batch": lambda x: F.batch_norm(x.reshape(1, 6, 4), None, None, training=True),
        "a batch, natively": lambda x: torch._native_batch_norm_legit(x, None, None, True, 0.1, 1e-5),
        "instances": lambda x: F.instance_norm(x),
    },
    "native_layer_norm": {"layer_norm": lambda x: F.layer_norm(x, (4,))},
    "grad": {
        "vjp": lambda x: torch.func.vjp(torch.exp, x)[1](x)[0],
        "a method": lambda x: (x.requires_grad_() ** 2).sum().backward(),
        "jacobian": lambda x: torch.autograd.functional.jacobian(torch.exp, x[0, 0]),
        "func": lambda x: torch.func.grad(lambda y: y.exp().sum())(x),
    },
    "backward": {
        "a method": lambda x: (x.requires_grad_() ** 2).sum().backward(),
        "grad": lambda x: torch.autograd.grad((x.requires_grad_() ** 2).sum(), x),
    },
}  # fmt: skip
CASES = [(name, door) for name, doors in DOORS.items() for door in doors]
#: computed in the same steps as what one may write oneself: known by name only
BY_NAME = {"cosine_similarity"}


def test_every_forbidden_function_is_tried_here():
    assert set(FORBIDDEN) <= {*DOORS, "softmin"}


def test_operations_are_torch_s_own():
    for operations in OPERATIONS.values():
        for operation in operations:
            assert hasattr(torch.ops.aten, operation), operation


@pytest.mark.parametrize("hidden", [False, True], ids=["as it is", "where names are not seen"])
@pytest.mark.parametrize(("name", "door"), CASES, ids=[f"{name} {door}" for name, door in CASES])
def test_every_door_is_seen(name, door, hidden):
    if name in BY_NAME and hidden:
        pytest.skip("has no operation of its own")
    function, x = DOORS[name][door], square()
    arguments = (x, x) if name == "cosine_similarity" else (x,)
    with Watch((name,)) as watch:
        if hidden:
            with torch._C.DisableTorchFunction():
                function(*arguments)
        else:
            function(*arguments)
    assert watch.seen and watch.seen <= {*closed([name])}


def test_what_is_told_is_what_was_called():
    with Watch(("layer_norm",)) as watch:
        torch.nn.GroupNorm(3, 3)(square())
    assert watch.seen == {"group_norm"}
    with Watch(("softmax",)) as watch:
        torch._safe_softmax(square(), -1)
    assert watch.seen == {"softmax"}


def test_what_another_thread_computes_is_not_seen():
    """As the docstring says, which is why the grader flags the word."""
    with Watch(("softmax",)) as watch, ThreadPoolExecutor(1) as pool:
        pool.submit(torch.softmax, square(), -1).result()
    assert watch.seen == set()


INNOCENT = {
    "own softmax": lambda x: torch.exp(x - x.amax(-1, keepdim=True)) / torch.exp(x).sum(-1, keepdim=True),
    "own attention": lambda x: (x @ x.mT / 2).softmax(-1) @ x,
    "own loss": lambda x: -x.log_softmax(-1).gather(-1, torch.zeros(2, 3, 1, dtype=torch.int64)).mean(),
    "logaddexp": lambda x: torch.logaddexp(x, x),
    "norms": lambda x: (x / x.norm(dim=-1, keepdim=True).clamp_min(1e-8)) @ x.mT,
    "variance": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
}
MAY = {"own attention": ("softmax",), "own loss": ("log_softmax",)}


@pytest.mark.parametrize("what", INNOCENT)
def test_what_one_writes_oneself_is_no_door(what):
    names = tuple(name for name in FORBIDDEN if name not in MAY.get(what, ()))
    with Watch(names) as watch:
        INNOCENT[what](square())
    assert watch.seen == set()


@pytest.mark.parametrize("exercise", WATCHED, ids=lambda one: one.name)
def test_no_reference_and_no_mistake_is_taken_for_a_forbidden_function(exercise):
    for function in (exercise.reference, *(mistake.function for mistake in exercise.mistakes)):
        verdict = judge_function(exercise, function)
        assert "forbidden" not in {finding.stage for finding in verdict.findings}


def test_the_slopes_that_a_check_takes_itself_are_not_the_learner_s():
    x = square()
    outcome = observe(torch.exp, (x,), cotangents=(torch.ones_like(x),), watched=("grad", "backward"))
    assert outcome.called == frozenset() and outcome.gradients[0] is not None


def test_watching_imports_no_compiler():
    """It takes a second, and every notebook that is graded would take it anew."""
    program = (
        "import sys, torch\nfrom attention_course.checks.engine.watch import Watch\n"
        "before = set(sys.modules)\nwith Watch(('softmax', 'grad')):\n    torch.ones(2).exp()\n"
        "print(len(set(sys.modules) - before))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(finished.stdout) < 5


@pytest.mark.parametrize("kind", ["eager", "vmap"])
def test_what_is_compiled_or_mapped_can_be_watched(kind):
    def softmax(row):
        return torch.exp(row - row.amax()) / torch.exp(row - row.amax()).sum()

    function = torch.func.vmap(softmax)
    if kind == "eager":
        function = torch.compile(function, backend="eager")
    x = square()[0]
    with Watch(("softmax",)) as watch:
        result = function(x)
    assert watch.seen == set() and torch.allclose(result, x.softmax(-1))


def test_names_without_their_disguise():
    names = ("softmax", "_softmax", "special_softmax", "softmax.int", "_softmax.default")
    assert {plain_name(name) for name in names} == {"softmax"}
