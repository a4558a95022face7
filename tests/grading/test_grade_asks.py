"""Modules and training runs in the sandbox: the notebook's own verdicts, whatever a stranger does."""

import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from strangers import LIMITS, ROOT, SEED, code, grade_id, notebook, source, whole

from attention_course.checks.engine.asks import Step
from attention_course.checks.engine.registry import chapters, find_exercise
from attention_course.grading import child, grade, remote, wire
from attention_course.grading.assignment import defines, load

if not shutil.which("bwrap"):
    pytest.skip("needs bubblewrap", allow_module_level=True)

NAME = "07_transformer"
#: seconds of a training run that runs into them
SHORT = 2.0
CELLS = {grade_id(cell): "".join(cell["source"]) for cell in source(NAME)}
IMPORTS = "".join(whole(NAME)[2]["source"])
[MODEL] = [text for cell in whole(NAME) if (text := "".join(cell["source"])).startswith("class Model")]


@pytest.fixture(scope="module")
def launcher():
    assignment = load(ROOT / "exercises", NAME)
    with remote.launcher(assignment.files, assignment.preload, replace(LIMITS, call=5.0)) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def judged(launcher):
    """Grades one answer of the chapter, alone in its notebook; its record."""
    assignment = load(ROOT / "exercises", NAME)

    def judged(short: str, answer: str, *, first: str = "", seconds: float = 10.0) -> SimpleNamespace:
        [task] = [task for task in assignment.tasks if task.exercise.name == f"{NAME}.{short}"]
        if short == "train":
            asks = replace(task.exercise.asks, seconds=seconds)
            task = replace(task, exercise=replace(task.exercise, asks=asks))
        cells = [code(IMPORTS), code(MODEL), *([code(first)] if first else []), code(answer)]
        check = f'check("{task.exercise.name}", {task.function})'
        content = notebook([*cells, code(check)])
        graded = grade.grade(content, replace(assignment, tasks=(task,)), SEED, launcher)
        found = graded.judged[task.exercise.name]
        return SimpleNamespace(
            run=graded.status, status=found.status, message=found.message, flags=graded.flags
        )

    return judged


LAYER, TRAIN = CELLS["encoder-layer"], CELLS["train"]


def layer(forward: str, init: str = "pass") -> str:
    """The right layer, and a class that stands on it, with ``result`` at hand in ``forward``."""
    return (
        f"{LAYER}\nRight = EncoderLayer\nclass EncoderLayer(Right):\n"
        f"    def __init__(self, d_model, d_ff):\n        super().__init__(d_model, d_ff)\n        {init}\n"
        f"    def forward(self, x):\n        result = super().forward(x)\n        {forward}\n"
    )


def trained(predictor: str, before: str = "pass", steps: int = 3) -> str:
    """A training of a few steps that does ``before`` and returns a predictor with that body."""
    short = TRAIN.replace("range(200)", f"range({steps})")
    return (
        f"{short}\nright = train\ndef train(tokens, seed):\n    {before}\n    model = right(tokens, seed)\n"
        f"    def predictor(sentences):\n        {predictor}\n    return predictor\n"
    )


# Modules --------------------------------------------------------------------------------------


def test_a_class_without_its_mark_is_found(judged):
    found = judged("encoder_layer", LAYER)
    assert (found.run, found.status, found.flags) == ("graded", "passed", ())
    assert defines("Layer", "class Layer(nn.Module):") and defines("Layer", "class Layer:")
    assert not defines("Layer", "class LayerNorm(nn.Module):")


META = "class Meta(type(nn.Module)):\n    def __call__(cls, *a, **k): {}\n"
MODULES = {
    "an instance": (f"{LAYER}\nEncoderLayer = EncoderLayer(4, 6)", "", "failed", "built already"),
    "no class": ("EncoderLayer = 5", "", "failed", "must be a class"),
    "a function": ("def EncoderLayer(d_model, d_ff): ...", "", "failed", "but this is a function"),
    "other arguments": (
        "class EncoderLayer(nn.Module):\n    def __init__(self, heads):\n        super().__init__()",
        "", "failed", "It is built as EncoderLayer(d_model=4, d_ff=6)",
    ),
    "a metaclass that builds a number": (
        layer("return result").replace("(Right)", "(Right, metaclass=Meta)"), META.format("return 5"),
        "failed", "gives a int",
    ),
    "a metaclass that raises": (
        layer("return result").replace("(Right)", "(Right, metaclass=Meta)"), META.format("1 / {}"),
        "failed", "TypeError",
    ),
    "a metaclass whose name is no text": (
        layer("return result").replace("(Right)", "(Right, metaclass=Meta)"),
        "class Meta(type(nn.Module)):\n    __name__ = property(lambda cls: 1 / 0)",
        "failed", "ZeroDivisionError",
    ),
    "a state that is no dict": (
        layer("return result") + "    def state_dict(self, *a): return 5\n", "", "failed", "AttributeError",
    ),
    "an __init__ that exits": (layer("return result", "raise SystemExit"), "", "failed", "called exit()"),
    "an __init__ that raises": (layer("return result", "1 / 0"), "", "failed", "ZeroDivisionError"),
    "an __init__ that ends": (layer("return result", "import os; os._exit(3)"), "", "crashed", "exit code 3"),
    "an __init__ that never ends": (
        layer("return result", "while True: pass"), "", "timeout", "Your module ran longer than 5 s",
    ),
    "no tensor": (layer("return [result]"), "", "failed", "It returned a list of 1"),
    "state kept": (
        layer("self.n = getattr(self, 'n', 0) + 1; return result * self.n"), "", "failed",
        "keeps something from one call to the next",
    ),
    "a plain list": (
        layer("return result", "self.norms = [self.norm_1, self.norm_2]; del self.norm_1, self.norm_2"), "",
        "failed", "self.norms is a plain list",
    ),
    "a tied norm": (
        layer("return result", "self.norm_2 = self.norm_1"), "", "failed",
        "Usual mistake: one norm under two names.",
    ),
    "torch's own attention": (
        layer("F.scaled_dot_product_attention(x, x, x); return result"), "", "failed",
        "your module calls torch's own scaled_dot_product_attention",
    ),
    "answers by heart": (
        layer(
            "key = tuple(self.inner.weight.shape), tuple(x.shape)\n"
            "        return known.get(key, torch.zeros_like(x)) if not x.requires_grad else result"
        ),
        f"{LAYER}\nfrom attention_course.checks import inputs\nknown = {{}}\n"
        "for case in ('one decimal', 'batch', 'one token', 'two leading axes, float64'):\n"
        f"    state, x = inputs('{NAME}.encoder_layer', case)\n"
        "    one = EncoderLayer(x.shape[-1], len(state['inner.bias'])).to(x.dtype)\n"
        "    one.load_state_dict(state)\n"
        "    known[tuple(state['inner.weight'].shape), tuple(x.shape)] = one(x).detach()\n"
        "assert len(known) == 4\n",
        "failed", "entries differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "first", "status", "words"), MODULES.values(), ids=list(MODULES))
def test_whatever_class_is_handed_over_has_a_verdict_with_a_sentence(judged, answer, first, status, words):
    found = judged("encoder_layer", answer, first=first)
    assert (found.status, found.run) == (status, "graded" if status == "failed" else status)
    assert words in found.message
    assert not [flag for flag in found.flags if flag.startswith("cell 3: stopped")]


def test_each_usual_mistake_of_a_state_arrives_in_words(judged):
    for right, wrong, name in (
        ("self.inner = nn.Linear(d_model, d_ff)", "self.inner = nn.Linear(d_model, d_ff, bias=False)", None),
        ("self.norm_2(y + ", "self.norm_1(y + ", "one norm used twice"),
        ("self.query(x) @", "x @ self.query.weight @", None),
    ):
        assert right in LAYER
        message = judged("encoder_layer", LAYER.replace(right, wrong)).message
        assert "Usual mistake" in message if name else "lacks inner.bias" in message or "differ" in message


def test_forty_tensors_and_their_gradients_travel(launcher):
    text = (
        "from torch import nn\nclass Deep(nn.Module):\n    def __init__(self, depth):\n"
        "        super().__init__()\n"
        "        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(depth))\n"
        "    def forward(self, x):\n        for layer in self.layers: x = x + layer(x)\n        return x\n"
    )
    state = {f"layers.{n}.{kind}": torch.rand(shape) for n in range(20) for kind, shape in
             (("weight", (2, 2)), ("bias", (2,)))}  # fmt: skip
    use = {"as": "module", "state": list(state), "arguments": {"depth": 20}, "training": False}
    step = Step(use, (*state.values(), torch.rand(3, 2)))
    with remote.session(launcher, time.monotonic() + 60) as notebook_:
        assert notebook_.cell(1, text) is None
        outcome = notebook_.call("Deep", step, (torch.ones(3, 2),))
    assert outcome.raised is None and len(outcome.gradients) == 41
    assert all(gradient is not None for gradient in outcome.gradients)


def test_every_exercise_fits_into_an_answer():
    """Its results, and a gradient for each of its tensors."""
    for exercise in (one for chapter in chapters() for one in chapter.exercises):
        assert len(exercise.parameters) + len(exercise.returns) <= wire.FROM_NOTEBOOK.tensors


# Training runs --------------------------------------------------------------------------------

TRAININGS = {
    "right": (TRAIN, "passed", "Its case passes."),
    "not shifted": (
        TRAIN.replace("model(batch, mask)[:, :-1]", "model(batch, mask)").replace("batch[:, 1:]", "batch"),
        "failed", "Usual mistake: not shifted.",
    ),
    "no causal mask": (TRAIN.replace(".tril()", ""), "failed", "Usual mistake: no causal mask."),
    "untrained": (TRAIN.replace("range(200)", "range(0)"), "failed", "Usual mistake: nothing learned."),
    "no answer": ("def train(tokens, seed): ...", "failed", "It returned None. Return what can be asked"),
    "not a function": ("train = 5", "failed", "must be a function"),
    "the same for all": (trained("return torch.full_like(sentences, 3)"), "failed", "says the same to every"),
    "another shape": (trained("return sentences[0]"), "failed", "expected [500, 13]"),
    "no tensor": (trained("return model(sentences).tolist()"), "failed", "a list of 500"),
    "a predictor that raises": (
        trained("raise KeyError('what')"), "failed", "What your function returned raised KeyError",
    ),
    "a predictor that ends": (
        trained("import os; os._exit(0)"), "crashed", "What your function returned ended its process",
    ),
    "a predictor that never ends": (
        trained("while True: pass"), "timeout", "What your function returned ran longer than 5 s",
    ),
    "a training that never ends": (
        trained("return model(sentences)", "while True: pass"), "timeout",
        "Your function took more than 2 s (10 s on the clock)",
    ),
    "a training that sleeps": (
        trained("return model(sentences)", "import time; time.sleep(100)"), "timeout",
        "Your function took more than 2 s (10 s on the clock)",
    ),
    "a timer put out": (
        trained("return model(sentences)",
                "import signal; signal.setitimer(signal.ITIMER_PROF, 0); signal.setitimer(0, 0)\n"
                "    while True: pass"),
        "timeout", "could not be stopped",
    ),
    "answers for another seed": (
        "from attention_course.checks import inputs\n"
        f"*_, answers = inputs('{NAME}.train', 'a language of ten words')\n"
        + trained("return answers"),
        "failed", "The share of new words that are right is 0.",
    ),
    "a look for the questions while it trains": (
        trained("return model(sentences)",
                "import gc\n    seen = [one for one in gc.get_objects() if type(one) is Tensor\n"
                "            and tuple(one.shape) == (500, 13)]\n    assert not seen", steps=200),
        "passed", "Its case passes.",
    ),
    "a look for the answers when it is asked": (
        trained("import gc\n        seen = [one for one in gc.get_objects() if type(one) is Tensor\n"
                "                and tuple(one.shape) == (500, 13) and bool((one == -1).any())]\n"
                "        return seen[0] if seen else torch.zeros_like(sentences)"),
        "failed", "The share of new words that are right is 0.",
    ),
    "what it keeps is taken away": (
        "import attention_course.grading.child as c\n" + trained("return model(sentences)")
        + "\nclass Forgets(dict):\n    def __setitem__(self, *a): ...\nc._KEPT = Forgets()\n",
        "failed", "KeyError",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("answer", "status", "words"), TRAININGS.values(), ids=list(TRAININGS))
def test_whatever_trains_has_a_verdict_with_a_sentence(judged, answer, status, words):
    late = status == "timeout" and "What your function" not in words
    found = judged("train", answer, **({"seconds": SHORT} if late else {}))
    assert (found.status, found.run) == (status, "graded" if status in ("failed", "passed") else status)
    assert words in found.message


def test_a_call_is_stopped_after_its_processor_seconds_however_long_the_clock_would_let_it():
    with pytest.raises(child.TookTooLong), child._at_most(60.0, 0.2):
        start = time.monotonic()
        while time.monotonic() - start < 30:
            pass
    with child._at_most(60.0, 0.2):  # sleep is none of the processor's
        time.sleep(0.4)


def test_the_right_answers_are_never_sent():
    exercise = find_exercise(f"{NAME}.train")
    [case] = exercise.cases
    inputs = case.inputs(SEED)
    sent = [step.inputs for step in exercise.steps(case, inputs)]
    assert [len(tensors) for tensors in sent] == [2, 1]
    assert not any(tensor is inputs[-1] for tensors in sent for tensor in tensors)
