"""Exercises that load somebody else's weights: what they match, what is left out, who answers."""

import torch

from attention_course.checks import find_exercise
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.engine.use import applied

ENCODER = find_exercise("07_transformer.encoder")
[PADDED] = [case for case in ENCODER.cases if case.name == "padded"]


def theirs_with(state, num_heads):
    """torch's own encoder with the state of a case."""
    d_ff, d_model = state["layers.0.linear1.weight"].shape
    layer = torch.nn.TransformerEncoderLayer(d_model, num_heads, d_ff, dropout=0.0, batch_first=True)
    theirs = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    theirs.load_state_dict(state)
    return theirs


def told(answer):
    return {(one.stage, one.text) for one in judge_function(ENCODER, answer).findings}


def test_loaded_weights_say_what_torchs_encoder_says():
    *weights, x, real = inputs = PADDED.inputs()
    theirs = theirs_with(dict(zip(ENCODER.asks.state, weights, strict=True)), PADDED.arguments["num_heads"])
    ours = applied(ENCODER.reference, ENCODER.asks.use(PADDED), {})(*inputs)
    want = theirs(x, src_key_padding_mask=real == 0)
    assert torch.allclose(ours[real == 1], want[real == 1], atol=1e-5)


def test_torchs_encoder_itself_is_no_answer():
    class Encoder(ENCODER.reference):
        def load_torch(self, state):
            self.theirs = theirs_with(state, self.layers[0].num_heads)

        def forward(self, x, real):
            return self.theirs.to(x.dtype)(x, src_key_padding_mask=real == 0)

    assert "forbidden" in {stage for stage, _ in told(Encoder)}


def test_a_class_without_the_method_and_one_that_loads_nothing_are_told_apart():
    class Encoder(torch.nn.Module):
        def __init__(self, d_model, num_heads, d_ff):
            super().__init__()
            self.part = torch.nn.Linear(d_model, d_model)

        def forward(self, x, real):
            return self.part(x)

    assert told(Encoder) == {("unfit", "Encoder has no method load_torch(self, state).")}
    Encoder.load_torch = lambda self, state: None
    text = "load_torch leaves part.weight, part.bias as they were built, and forward reads them."
    assert told(Encoder) == {("unfit", text)}


def test_parameters_that_nobody_reads_may_stay_as_they_are():
    class Encoder(ENCODER.reference):
        def load_torch(self, state):
            super().load_torch(state)
            self.unused = torch.nn.Parameter(torch.full((2,), torch.nan))

    assert judge_function(ENCODER, Encoder).passed


def test_weights_may_be_copied_assigned_or_kept():
    """Whatever way they go in, what counts is what comes out."""

    def assigned(self, state):
        for name, tensor in named(self, state):
            part, _, last = name.rpartition(".")
            setattr(self.get_submodule(part), last, torch.nn.Parameter(tensor.clone()))

    @torch.no_grad()
    def copied(self, state):
        own = dict(self.named_parameters())
        for name, tensor in named(self, state):
            own[name].copy_(tensor)

    def named(self, state):
        found = []
        self.load_state_dict = found.append
        ENCODER.reference.load_torch(self, state)
        return found[0].items()

    for way in (assigned, copied):
        answer = type("Encoder", (ENCODER.reference,), {"load_torch": way})
        assert judge_function(ENCODER, answer).passed


def _loading(load_torch):
    return type("Encoder", (ENCODER.reference,), {"load_torch": load_torch})


def test_an_error_in_loading_is_told_with_its_line_and_the_first_names():
    def as_it_is(self, state):
        self.load_state_dict(state)

    def too_short(self, state):
        found = dict(self.state_dict())
        self.load_state_dict(found | {"layers.1.inner.weight": found["layers.1.inner.weight"][:2]})

    def another_name(self, state):
        return state["nowhere"]

    [(stage, text)] = told(_loading(as_it_is))
    assert stage == "unfit" and "(at line " in text and "self.load_state_dict(state))" in text
    assert "missing layers.0.query.weight and 31 more; unexpected layers.0.self_attn.in_proj_weight" in text
    texts = " ".join(text for _, text in told(_loading(too_short)))
    assert "layers.1.inner.weight is [6, 4], and [2, 4] came" in texts
    [(_, text)] = told(_loading(another_name))
    assert text.startswith("load_torch raised KeyError: 'nowhere' (at line ")


def test_a_starter_is_still_not_written():
    def starter(self, state):
        raise NotImplementedError()

    assert {stage for stage, _ in told(_loading(starter))} == {"unwritten"}


def test_a_dictionary_that_is_taken_apart_is_told():
    def popped(self, state):
        found = {name: state.pop(name) for name in list(state)}
        ENCODER.reference.load_torch(self, found)

    [(stage, text)] = told(_loading(popped))
    assert stage == "unfit" and text.startswith("load_torch changes the dictionary that it is given")
    assert judge_function(ENCODER, _loading(lambda self, state: popped(self, dict(state)))).passed
