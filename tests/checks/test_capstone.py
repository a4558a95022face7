"""The capstone: right answers in another style, usual mistakes of assembly by name, what scenes see."""

import re
from pathlib import Path

import capstone_in_another_style as other
import oracles
import pytest
import torch
from torch import nn

from attention_course.checks import find_exercise, inputs
from attention_course.checks.capstone import CHAPTER
from attention_course.checks.capstone.model import GPT, with_model
from attention_course.checks.capstone.shared import STATE
from attention_course.checks.engine import kernel, language, notebook, plain
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.use import applied

BY_NAME = {one.name.partition(".")[2]: one for one in CHAPTER.exercises}
SEEDS = (0, 1, 2**80)
#: what there is an oracle for; the gradients of the others are torch's own
COMPARED = ("tokenizer", "logits", "generate", "update")


def judged(name, answer, seed=0):
    return judge_function(BY_NAME[name], answer, seed)


def told(name, answer):
    verdict = judged(name, answer)
    assert not verdict.passed
    return verdict.findings[0].text


# Right answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMPARED)
def test_the_reference_is_what_the_formula_says(name, seed=3):
    exercise = BY_NAME[name]
    # the oracle reads everything again for each token it writes, which takes seconds
    for case in exercise.cases[-2 if name == "generate" else 0 :]:
        drawn = case.inputs(seed)
        step = exercise.steps(case, drawn)[0]
        got = applied(exercise.reference, step.use, {})(*drawn)
        arrays = [one.double().numpy() if one.is_floating_point() else one.numpy() for one in drawn]
        more = case.arguments.values() if name == "update" else ()
        want = oracles.of(exercise)(*arrays, *more)
        got, want = (one if isinstance(one, tuple) else (one,) for one in (got, want))
        for mine, right in zip(got, want, strict=True):
            right = torch.as_tensor(right).to(mine.dtype)
            torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4, msg=case.name)


@pytest.mark.parametrize("name", BY_NAME)
def test_another_style_passes(name):
    answer = getattr(other, BY_NAME[name].answer)
    for seed in SEEDS[: 1 if name in ("overfit", "generate", "train") else 3]:  # these take seconds
        verdict = judged(name, answer, seed)
        assert verdict.passed, verdict.findings[0].text


def test_the_number_of_parameters_is_that_of_the_formula():
    for case in BY_NAME["logits"].cases:
        V, T, d, N = (case.arguments[one] for one in ("vocabulary", "length", "d_model", "num_layers"))
        state = case.inputs()[: len(STATE)]
        assert sum(one.numel() for one in state) == (V + T) * d + N * (12 * d**2 + 13 * d) + 2 * d


def test_a_model_may_put_itself_where_it_likes_to_compute():
    """On the device "meta" nothing is computed: that tensors arrive there is all that can be seen here."""
    model = nn.Linear(2, 2, device="meta")
    [tokens] = language.on(model, torch.zeros(3))
    assert tokens.device.type == "meta"
    assert language.on(lambda tokens: tokens, torch.zeros(3))[0].device.type == "cpu"


@pytest.mark.gpu
def test_a_model_on_a_graphics_card_is_asked_there():
    class There(other.GPT):
        def __init__(self, *sizes, **named):
            super().__init__(*sizes, **named)
            self.cuda()

    for name in ("logits", "start", "overfit", "generate", "sample"):
        verdict = judged(name, There)
        assert verdict.passed, verdict.findings[0].text


# The usual mistakes of assembly ----------------------------------------------------------------

#: what was changed in the answer in another style: (milestone, what is right there, what is wrong, the name)
MISTAKES = {
    "leaking mask": ("logits", "+ self.future[first:last, :last]", "", "no causal mask"),
    "leaking by one": ("logits", ".triu(1)", ".triu(2)", "mask off by one"),
    "leaking a little": ("logits", 'float("-inf")', "-15.0",
        # large scores make much of rounding: on some processors it is a number too far from the mistake's
        ("mask that leaks", None)),
    "no positions": ("logits", " + self.wpe[first:last]", "", "no positions"),
    "positions by the batch axis": (
        "logits", "self.wpe[first:last]", "self.wpe[torch.arange(len(tokens)) % self.max, None]",
        "positions along the batch",
    ),
    "no last norm": ("logits", "normed(x, self.last)", "x", "no last norm"),
    "missing residual": ("logits", "x = x + drop(einsum", "x = drop(einsum",
        "residual missing around attention"),
    "norm order": ("logits", "x = x + drop(inner @ w_back + b_back, self.p, self.training)",
                   "x = x + drop(inner @ w_back + b_back, self.p, self.training); x = normed(x, norms[1])",
                       None),
    "softmax in the model": ("logits", 'self.wte)\n\n', 'self.wte).softmax(-1)\n\n', "softmax in the model"),
    "dropout active in evaluation": ("logits", "self.training)\n            inner",
        "True)\n            inner",
                                     "dropout that is always on"),
    "wide embedding": ("start", "torch.randn(shape) * 0.02", "torch.randn(shape)",
        "drawn too large"),
    "output by itself": ("overfit", 'normed(x, self.last), self.wte)',
        'normed(x, self.last), self.wte.detach())', None),
    "cache position one too far": ("generate", "self.wpe[first:last]",
        "self.wpe[first + (first > 0):last + (first > 0)]",
                                   "cache position one too far"),
    "cache position one too short": (
        "generate", "self.wpe[first:last]", "self.wpe[first - (first > 0):last - (first > 0)]",
        "cache position one too short",
    ),
    "no cache": ("generate", "self(text[:, read:now], memory, read)", "self(text[:, :now])", "no cache"),
    "temperature multiplied": ("sample", "logits / temperature", "logits * temperature",
        "temperature multiplied"),
    "targets not shifted": ("update", "p[:, :-1].gather(2, tokens[:, 1:, None])",
        "p.gather(2, tokens[:, :, None])",
                            "targets not shifted"),
    "softmax before the "
    "cross-entropy": ("update", "model(tokens).log_softmax(-1)", "model(tokens).softmax(-1).log_softmax(-1)",
                                         "softmax before the cross-entropy"),
    "no clipping": ("update", "one.grad /= max(1.0, length.item())", "pass", "no clipping"),
    "each parameter clipped": ("update", "one.grad /= max(1.0, length.item())",
        "one.grad /= max(1.0, one.grad.norm().item())", "each parameter clipped"),
    "rate of the first group": ("update", "in optimizer.param_groups:", "in optimizer.param_groups[:1]:",
        "rate of the first group"),
    "stripped": ("tokenizer", "list(sentence)).tolist()", "list(sentence.strip())).tolist()", "stripped"),
    "not sorted": ("tokenizer", "np.unique(list(corpus))", "np.array([*dict.fromkeys(corpus)])",
        None),  # what searchsorted says of them is no order at all
    "every order": ("tokenizer", "np.searchsorted(self.alphabet, list(sentence)).tolist()",
        "[len(self.alphabet) - 1 - np.searchsorted(self.alphabet, one).item() for one in sentence]",
        "not sorted"),
    "dropout on the embedding": ("logits", "        drop = nn.functional.dropout\n",
        "        drop = nn.functional.dropout; x = drop(x, self.p, self.training)\n",
        "dropout on the embedding"),
    "no dropout": ("logits", "self.h, self.p, self.max = num_heads, dropout, length",
        "self.h, self.p, self.max = num_heads, 0.0, length", "dropout that drops nothing"),
    "share kept": ("logits", "self.h, self.p, self.max = num_heads, dropout, length",
        "self.h, self.p, self.max = num_heads, dropout and 1 - dropout, length",
        "dropout that drops nothing"),
    "in training mode": ("generate", "        batch, start = tokens.shape\n",
        "        batch, start = self.train() and tokens.shape\n", "in training mode"),
    "the same shares for all rows": ("sample", "logits = logits / temperature",
        "logits = (logits / temperature).softmax(-1).mean(0).log()", "the same shares for all rows"),
    "only the first drawn": ("sample", "if temperature > 0:", "if temperature > 0 and now == start:",
        "only the first new token drawn"),
    "the first ten": ("sample", "logits = logits / temperature -",
        "logits = logits.where(logits >= logits.topk(10).values[:, -1:], -torch.inf) / temperature -",
        "some are never drawn"),
    "the first forty": ("sample", "logits = logits / temperature -",
        "logits = logits.where(logits >= logits.topk(40).values[:, -1:], -torch.inf) / temperature -",
        "some are never drawn"),
}  # fmt: skip
SOURCE = Path(other.__file__).read_text()


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_made_in_another_style_has_its_name(what):
    name, right, wrong, called = MISTAKES[what]
    assert SOURCE.count(right) == 1
    space = {}
    exec(SOURCE.replace(right, wrong), space)
    for seed in (0, 1)[: 1 if name in ("overfit", "generate") else 2]:
        verdict = judged(name, space[BY_NAME[name].answer], seed)
        assert not verdict.passed
        assert (verdict.mistake and verdict.mistake.name) in (
            called if isinstance(called, tuple) else (called,)
        )


# What is told of answers that do not fit -------------------------------------------------------


class _NoLoad(other.GPT):
    load = None


class _Remembers(GPT):
    def embedded(self, tokens, start):
        self.calls = getattr(self, "calls", 0) + 1
        return super().embedded(tokens, start) * self.calls


class _Aliases(GPT):
    def load(self, state):
        for name, parameter in self.named_parameters():
            parameter.data = state[name]


class _LeavesSome(GPT):
    def load(self, state):
        self.load_state_dict({name: state[name] for name in state if "output" not in name}, strict=False)


class _MaskKept(GPT):
    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.register_buffer("mask", torch.ones(self.position.num_embeddings, 1))


class _FixedDropout(other.GPT):
    def __init__(self, *sizes, **named):
        super().__init__(*sizes, **named)
        self.p = 0.1


class _PlainList(other.GPT):
    """Evaluation mode does not reach its dropout."""

    def eval(self):
        return self


class _KeepsItsCache(GPT):
    @torch.no_grad()
    def generate(self, tokens, number, temperature=1.0):
        self.kept = getattr(self, "kept", None)
        newest = tokens
        for _ in range(number):
            logits, self.kept = self.read(newest, self.kept)
            newest = self.chosen(logits[:, -1], temperature)
            tokens = torch.cat((tokens, newest), 1)
        return tokens


class _LeavesItForForward(_KeepsItsCache):
    def generate(self, tokens, number, temperature=1.0):
        self.kept = None
        return super().generate(tokens, number, temperature)

    def forward(self, tokens):
        return self.read(tokens, getattr(self, "kept", None))[0]


def _seeded(self, logits, temperature):
    torch.manual_seed(0)
    return GPT.chosen(self, logits, temperature)


def _with_its_graph(model, optimizer, tokens, step):
    return nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


UNFIT = {
    "a model": ("logits", GPT(5, 6, 8, 2, 2, 0.0), "Hand over the class itself, without calling it"),
    "no module": ("logits", dict, "A class of modules was to be handed over"),
    "other arguments": ("logits", nn.Bilinear, "does not take that"),
    "no load": ("logits", _NoLoad, "has no method load(state)"),
    "keeps something": ("logits", _Remembers, "it keeps something from one call to the next"),
    "probabilities of another shape": ("logits", with_model(spoken=lambda self, x: x), "logits has shape"),
    "a tuple": ("logits", with_model(forward=lambda self, tokens: (self.read(tokens, None)[0], 1)),
        "logits is a tuple"),
    "nothing to learn": ("overfit", with_model(parameters=lambda self: iter(())), "has nothing to learn"),
    "no draw": ("sample", with_model(generate=lambda self, tokens, *rest, **named: tokens),
        "generate returned [9000, 6]; expected integers [9000, 8]"),
    "keeps the given state": ("overfit", _Aliases, "Copy the numbers into your own"),
    "frozen": ("overfit", with_model(load=lambda self, state: self.requires_grad_(False) and None),
        "None of model.parameters() requires a gradient"),
    "parts that are not loaded": ("logits", _LeavesSome, "load leaves some parameters as they were drawn"),
    "nothing loaded": ("logits", with_model(load=lambda self, state: None), "load leaves some parameters"),
    "a mask that is asked for": ("logits", _MaskKept, "more than the state has: \"mask\""),
    "what to do with such a mask": ("logits", _MaskKept, "need a line in load."),
    "an error in load": ("logits", with_model(load=lambda self, state: state["wte"]),
        "load(state) raised KeyError"),
    "other dropout than is given": ("logits", _FixedDropout, "Is the share that you drop the one that"),
    "layers that eval() does not reach": ("logits", _PlainList, "layers that lie in a plain list"),
    "a cache that is kept": ("generate", _KeepsItsCache, "Begin every call of generate with an empty cache"),
    "a cache that forward finds": ("generate", _LeavesItForForward, "leave none behind for forward"),
    "draws at temperature 0": ("generate", with_model(chosen=lambda self, logits, temperature: GPT.chosen(
        self, logits, temperature or 1.0)), "your model writes two: it draws"),
    "no generate": ("sample", type("GPT", (GPT,), {"generate": None}), "has no method generate"),
    "a seed of its own": ("sample", with_model(chosen=_seeded), "it sets a seed"),
    "an error while it draws": ("sample", with_model(chosen=lambda self, logits, temperature: [][0]),
        ".generate(tokens, number, temperature) raised IndexError"),
    "a loss with its graph": ("update", _with_its_graph, "Return the number"),
    "another order": ("tokenizer", type("Tokenizer", (other.Tokenizer,), {
        "encode": lambda self, text: [self.size - 1 - one for one in other.Tokenizer.encode(self, text)],
        "decode": lambda self, ids: other.Tokenizer.decode(self, [self.size - 1 - one for one in ids])}),
        "in another order than sorted"),
    "changes its prompt": (
        "generate",
        with_model(generate=lambda self, tokens, *rest, **named: GPT.generate(self, tokens.zero_(), *rest,
            **named)),
        "prompt is no longer what it was",
    ),
    "no loss": ("update", lambda model, optimizer, tokens, step: None, "It returned None; expected the loss"),
    "no model": ("train", lambda tokens, vocabulary, seed: None, "It returned None. Return the model"),
    "a table of pairs": ("train", lambda tokens, vocabulary, seed: print, "an nn.Module"),
    "a tokenizer of floats": (
        "tokenizer", type("Tokenizer", (other.Tokenizer,), {
            "encode": lambda self, text: [0.5], "decode": lambda self, ids: ""}), "expected integers",
    ),
    "nothing decoded": (
        "tokenizer", type("Tokenizer", (other.Tokenizer,), {"decode": lambda self, ids: ids}),
            "expected a str",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
def test_what_does_not_fit_is_told_in_a_sentence(what):
    name, answer, words = UNFIT[what]
    assert words in told(name, answer)


def test_dropout_that_is_on_after_training_is_told():
    class Drops(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(96, 96)

        def forward(self, tokens):
            return nn.functional.dropout(self.rows(tokens), 0.5)

    assert "it draws random numbers" in told("train", lambda tokens, vocabulary, seed: Drops())


def test_the_best_of_pairs_is_not_enough_and_what_is_asked_is_no_secret():
    """A table of pairs, counted in the text that is given, stays above the bound."""

    class Pairs(nn.Module):
        def __init__(self, counts):
            super().__init__()
            self.rows = nn.Parameter((counts + 0.05).log())

        def forward(self, tokens):
            return self.rows[tokens]

    def train(tokens, vocabulary, seed):
        counts = torch.zeros(vocabulary, vocabulary)
        counts.index_put_((tokens[:-1], tokens[1:]), torch.ones(len(tokens) - 1), accumulate=True)
        return Pairs(counts)

    verdict = judged("train", train)
    [number] = re.findall(r"character, is ([\d.]+)", verdict.findings[0].text)
    assert 2.35 < float(number) < 2.7
    *_, questions, answers = inputs("19_capstone.train", "Python's manual")
    assert questions.shape == (1000, 48) and answers.shape == (1000, 96)
    assert find_exercise("19_capstone.train") is BY_NAME["train"]


# A plain file in the place of a notebook ------------------------------------------------------


def test_a_plain_file_answers_every_milestone():
    assert {name: one.answer for name, one in BY_NAME.items()} == plain.ANSWERS


def test_a_plain_file_is_imported_and_what_it_lacks_is_told(tmp_path):
    file = tmp_path / "my gpt.py"
    whole = SOURCE.partition("\nclass GPT")[0] + "\nif __name__ == '__main__':\n    raise SystemExit\n"
    file.write_text(whole)
    read = notebook.read(file)
    exercises, unfinished = kernel.execute(read, tmp_path, 60.0)
    found = {one.exercise: one for one in notebook.results(str(file), read, exercises, unfinished)}
    assert list(found) == [one.name for one in CHAPTER.exercises]
    statuses = {name.partition(".")[2]: one.status for name, one in found.items()}
    assert statuses.pop("tokenizer") == "passed" and set(statuses.values()) == {"not started"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os\n\ndef late() -> str\n    pass\n",
            "SyntaxError in line 3: `def late() -> str` (expected ':')"),
        ("import tohrc\n", "ModuleNotFoundError in line 1: `import tohrc` (No module named 'tohrc')"),
        ("def late():\n    1 / 0\n\nlate()\n", "ZeroDivisionError in line 2: `1 / 0` (division by zero)"),
        ("import sys\nsys.exit(1)\n", "SystemExit in line 2: `sys.exit(1)` (1)"),
        ("raise ValueError", "ValueError in line 1: `raise ValueError`"),
    ],
)  # fmt: skip
def test_why_a_plain_file_cannot_be_imported(tmp_path, source, words):
    file = tmp_path / "gpt.py"
    file.write_text(source)
    with pytest.raises(plain.NotImported, match=re.escape(words) + "$"):
        plain.imported(str(file))
    assert plain.not_imported(("NotImported", words), {}) == f"it could not be imported: {words}"


def test_a_plain_file_that_does_not_end_is_told():
    assert plain.not_imported(None, {}) == plain.not_imported(None, {1: "ended the kernel"}) == ""
    assert "importing it ran longer than 2 s" in plain.not_imported(None, {0: "ran longer than 2 s"})
    assert "NameError: x" in plain.not_imported(("NameError", "x"), {})
