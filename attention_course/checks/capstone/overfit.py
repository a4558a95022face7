"""Milestone 4: the model learns, all of it, as far as one batch goes."""

import torch
from torch import Generator, Tensor, nn

from attention_course.checks.capstone.logits import _Untied
from attention_course.checks.capstone.model import GPT, Cache, Layer, with_layer, with_model
from attention_course.checks.capstone.shared import BUILT, NAME, STATE, sizes, state, tokens
from attention_course.checks.engine.asks import Inputs
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.engine.scenes import Scene

_SIZES = sizes(9, 8, 16, 2)


def _drawn(generator: Generator) -> Inputs:
    """A state, tokens for a few steps, and one batch to know by heart: no two sentences begin alike."""
    batch = tokens(generator, 9, 6, 8)
    batch[:, 0] = torch.randperm(9, generator=generator)[:6]
    return (*state(generator, _SIZES), tokens(generator, 9, 4, 7), batch)


def _detached(self: Layer, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    with torch.no_grad():
        query, key = (self.split(part(x)) for part in (self.query, self.key))
        weights = self.weights(query @ key.mT / self.scale(key))
    value = self.split(self.value(x))
    return self.output(self.merge(weights @ value)), (key, value)


class _PlainList(GPT):
    """Its layers lie in a list that nn.Module does not see."""

    def __init__(self, *sizes, **named) -> None:
        super().__init__(*sizes, **named)
        layers = list(self.layers)
        del self.layers
        self.layers = layers

    def load(self, state: dict[str, Tensor]) -> None:
        self.load_state_dict(state, strict=False)
        for number, layer in enumerate(self.layers):
            start = f"layers.{number}."
            layer.load_state_dict({k.removeprefix(start): v for k, v in state.items() if k.startswith(start)})


class _OneLayerTwice(GPT):
    def __init__(self, *sizes, **named) -> None:
        super().__init__(*sizes, **named)
        self.layers = nn.ModuleList([self.layers[0]] * len(self.layers))


OVERFIT = Exercise(
    name=f"{NAME}.overfit",
    title="One batch by heart",
    points=2,
    difficulty=2,
    minutes=20,
    reference=GPT,
    asks=Scene(
        "overfitted",
        given=("tokens", "batch"),
        called=f"{BUILT}(tokens)",
        state=STATE,
        noun="model",
        told={"steps": 250},
    ),
    returns=("logits after three steps", "next tokens"),
    cases=(Case("six sentences", _drawn, arguments=_SIZES),),
    mistakes=(
        Mistake(
            "an output that learns alone",
            _Untied,
            "Output and embedding begin with the same numbers and then part: they are two tensors. Tied "
            "means one parameter, used twice.",
        ),
        Mistake(
            "layers in a plain list",
            _PlainList,
            "nn.Module registers what is assigned to self, not what lies in a list: the optimizer never gets "
            "your layers. nn.ModuleList is a list that does register.",
        ),
        Mistake(
            "one layer twice",
            _OneLayerTwice,
            "All your layers are one module: what one learns, the others have. [layer] * n does not copy; "
            "build a new one each time.",
        ),
        Mistake(
            "no gradient through the weights",
            with_layer(attend=_detached),
            "Queries and keys learn nothing: no gradient passes through the attention's weights. Look for "
            "detach, .data or no_grad in forward.",
        ),
        Mistake(
            "positions that do not learn",
            with_model(
                embedded=lambda self, tokens, start: (
                    self.token(tokens) + self.position(torch.arange(start, start + tokens.shape[1])).detach()
                )
            ),
            "The positions stay what they were. They are a parameter like the tokens' embedding, and learn.",
        ),
    ),
    hints=(
        "The numbers were right before the steps and are wrong after them: something did not learn, or "
        "learned something else. Which parameters have no gradient after backward()?",
        "print the names in dict(model.named_parameters()): is all there, and nothing twice? The "
        "output and the token embedding must be one tensor, also after load.",
        "load copies numbers into your parameters, parameter.copy_(...) under no_grad: an assignment of "
        "new parameters would part what is tied.",
    ),
)
