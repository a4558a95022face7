"""Exercises that ask for a module: what is handed over, what state it has, what it keeps."""

import pytest
import torch
from torch import nn

from attention_course.checks import find_exercise, inputs
from attention_course.checks.engine import report
from attention_course.checks.engine.asks import Module
from attention_course.checks.engine.drawing import normal
from attention_course.checks.engine.exercise import Case, Exercise
from attention_course.checks.engine.judge import judge_function

ENCODER = find_exercise("07_transformer.encoder_layer")
Right = ENCODER.reference


def first(answer, exercise=ENCODER):
    """Stage and words of what is told first."""
    finding = judge_function(exercise, answer).findings[0]
    return finding.stage, finding.text


def rebuilt(**parts):
    """The right class, with attributes exchanged once it is built; None takes one away."""

    def __init__(self, d_model, d_ff):
        Right.__init__(self, d_model, d_ff)
        for name, part in parts.items():
            delattr(self, name)
            if part is not None:
                setattr(self, name, part(d_model, d_ff))

    return type("EncoderLayer", (Right,), {"__init__": __init__})


class OtherArguments(Right):
    def __init__(self, d_model, heads):
        super().__init__(d_model, heads)


class Renamed(nn.Module):
    """A norm whose weight has another name."""

    def __init__(self, d_model):
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))


class Meta(type):
    def __call__(cls, *arguments, **more):
        return 5


class Exits(Right):
    def __init__(self, d_model, d_ff):
        raise SystemExit


class NoSuper(nn.Module):
    def __init__(self, d_model, d_ff):
        self.query = nn.Linear(d_model, d_model)


HANDED_OVER = {
    "nothing": (None, "callable", "must be a class, but it is None"),
    "a number": (5, "callable", "must be a class, but it is an int"),
    "a module that is built": (Right(4, 6), "unfit", "a module that is built already"),
    "a function": (lambda d_model, d_ff: Right(d_model, d_ff), "unfit", "but this is a function"),
    "a class of something else": (type("Layer", (), {}), "unfit", "class Layer(nn.Module)"),
    "other arguments": (OtherArguments, "unfit", "EncoderLayer(d_model=4, d_ff=6)"),
    "a class that builds something else": (Meta("Layer", (Right,), {}), "unfit", "gives a int"),
    "exit": (Exits, "raised", "called exit()"),
    "super forgotten": (NoSuper, "raised", "Module.__init__() call"),
    "an abstract forward": (rebuilt(query=None), "unfit", "lacks query.weight"),
}


@pytest.mark.parametrize(("answer", "stage", "words"), HANDED_OVER.values(), ids=list(HANDED_OVER))
def test_what_is_no_class_of_modules_gets_a_sentence(answer, stage, words):
    words = words.replace("EncoderLayer(", f"{getattr(answer, '__name__', '')}(")
    told = first(answer)
    assert told[0] == stage and words in told[1]


STATES = {
    "lacking": (rebuilt(outer=lambda m, f: nn.Linear(f, m, bias=False)), "Your module lacks outer.bias."),
    "too much": (rebuilt(key=lambda m, f: nn.Linear(m, m)), "Nobody asked for key.bias: bias=False leaves"),
    "nearly right": (
        rebuilt(norm_1=lambda m, f: Renamed(m)), "Your module has norm_1.gain; expected norm_1.weight.",
    ),
    "transposed": (
        rebuilt(inner=lambda m, f: nn.Linear(f, m)),
        "inner.weight is [4, 6]; expected [6, 4]: torch.nn.Linear stores [out, in]",
    ),
    "another size": (rebuilt(norm_2=lambda m, f: nn.LayerNorm(f)), "norm_2.weight is [6]; expected [4]"),
    "many": (
        rebuilt(query=None, key=None, value=None, output=None),
        "Your module lacks query.weight, key.weight, value.weight and 1 more.",
    ),
    "in a dict": (
        rebuilt(norm_1=None, norm_2=lambda m, f: {"2": nn.LayerNorm(m)}),
        "self.norm_2 is a plain dict, where nn.Module does not see what is in it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "words"), STATES.values(), ids=list(STATES))
def test_another_state_is_told_by_name_and_shape(answer, words):
    stage, text = first(answer)
    assert stage == "unfit" and words in text
    assert len(text) <= 300  # so much of an error crosses the wire


def test_names_that_are_one_tensor_are_told_though_all_are_there():
    class Tied(Right):
        def __init__(self, d_model, d_ff):
            super().__init__(d_model, d_ff)
            self.key.weight = self.query.weight

    assert first(Tied)[1].startswith("query.weight and key.weight are one and the same tensor")


def test_a_buffer_that_is_no_state_is_nobody_s_business():
    class Masked(Right):
        def __init__(self, d_model, d_ff):
            super().__init__(d_model, d_ff)
            self.register_buffer("mask", torch.ones(1), persistent=False)

    assert judge_function(ENCODER, Masked).passed


def keeping(keep):
    """A right layer whose forward also does ``keep(self, x, result)``, and returns what that returns."""
    return type("EncoderLayer", (Right,), {"forward": lambda self, x: keep(self, x, Right.forward(self, x))})


def counts(self, x, result):
    self.calls = getattr(self, "calls", -1) + 1
    return result + self.calls


def remembers(self, x, result):
    before = getattr(self, "before", 0.0)
    self.before = x.mean()
    return result + before


def refuses_twice(self, x, result):
    if getattr(self, "used", False):
        raise RuntimeError("a layer is used once")
    self.used = True
    return result


@pytest.mark.parametrize("keep", [counts, remembers, refuses_twice])
def test_what_a_module_keeps_between_two_calls_is_noticed(keep):
    stage, text = first(keeping(keep))
    assert stage == "unfit" and text.startswith("Called again with the same x, your module")
    assert "keeps something from one call to the next" in text


def test_a_module_that_only_looks_back_for_itself_is_right():
    def notes(self, x, result):
        self.latest = result.detach()
        return result

    assert judge_function(ENCODER, keeping(notes)).passed


def test_random_numbers_are_told_as_such():
    def noise(self, x, result):
        return result + 0.1 * torch.randn(())

    assert "it draws random numbers" in first(keeping(noise))[1]


def test_dropout_is_off():
    class Dropping(Right):
        def __init__(self, d_model, d_ff):
            super().__init__(d_model, d_ff)
            self.dropout = nn.Dropout(0.5)

        def forward(self, x):
            return self.dropout(super().forward(x))

    assert judge_function(ENCODER, Dropping).passed


@pytest.mark.parametrize("result", [None, [1.0], 5], ids=["None", "a list", "a number"])
def test_a_forward_that_gives_no_tensor_is_told(result):
    assert first(keeping(lambda self, x, right: result))[0] == "type"


def test_a_gradient_that_is_cut_is_told_by_the_parameter_s_name():
    class Cut(Right):
        def feed(self, x):
            return nn.functional.linear(self.inner(x).relu(), self.outer.weight.detach(), self.outer.bias)

    stage, text = first(Cut)
    assert stage == "gradient" and "no gradient reaches outer.weight" in text


def test_the_card_says_how_it_was_built():
    text = report.plain(judge_function(ENCODER, rebuilt(query=None)), "")
    assert 'In the case "one decimal" (d_model=4, d_ff=6, x [3, 4]):' in text


def test_a_learner_sees_the_state_by_name():
    state, x = inputs(ENCODER.name, "batch")
    layer = Right(8, 24)
    layer.load_state_dict(state)
    assert list(state) == list(layer.state_dict()) and layer(x).shape == x.shape


# In training mode, with buffers ---------------------------------------------------------------


class Mean(nn.Module):
    """It takes out a mean that it once learned; the mistaken one learns on."""

    learns = False

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        if self.learns and self.training:
            self.mean += x.mean(0)
        return x - self.mean


BUFFERED = Exercise(
    name="any.mean",
    title="A buffer",
    points=1,
    difficulty=1,
    minutes=1,
    reference=Mean,
    asks=Module(("mean",), training=True),
    returns=("output",),
    cases=(Case("one", lambda g: (normal(g, 3), normal(g, 2, 3)), arguments={"width": 3}),),
    mistakes=(),
    hints=(),
)


def test_a_buffer_that_forward_changes_is_an_input_that_is_changed():
    assert judge_function(BUFFERED, Mean).passed
    stage, text = first(type("Learning", (Mean,), {"learns": True}), BUFFERED)
    assert stage == "inputs" and text.startswith("mean is no longer what it was: your module changed it")


def test_a_module_of_forty_tensors_is_compared_like_any_other():
    class Deep(nn.Module):
        def __init__(self, depth: int):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(depth))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x)
            return x

    names = tuple(Deep(20).state_dict())
    case = Case(
        "deep",
        lambda g: (
            *(normal(g, 2, 2) / 9 if "weight" in name else normal(g, 2) for name in names),
            normal(g, 3, 2),
        ),
        gradient=True,
        arguments={"depth": 20},
    )
    exercise = Exercise(
        name="any.deep", title="", points=1, difficulty=1, minutes=1, reference=Deep, asks=Module(names),
        returns=("output",), cases=(case,), mistakes=(), hints=(),
    )  # fmt: skip
    assert judge_function(exercise, Deep).passed
