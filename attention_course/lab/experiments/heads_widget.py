"""The inputs of the lab of heads: what is typed and chosen goes to ``heads``, a head view comes back."""

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets
from IPython.display import clear_output, display

from attention_course.inside.pretrained import Pretrained
from attention_course.lab.experiments import heads

_LABEL = {"description_width": "9em"}
_WIDE = {"width": "100%", "max_width": "46em"}


class HeadLab:
    """The lab's widgets, wired together; their values are all the state there is.

    ``sentence`` is what is read, ``example`` fills it in, ``layer`` and ``head`` (counted from 0) say
    with which head the view begins. ``outcome`` says what came of it, ``view`` shows what ``make_view``
    (``explorables.head_view``) makes of it. ``box`` holds them all.
    """

    def __init__(self, pretrained: Pretrained, make_view: Callable[..., Any]) -> None:
        self._pretrained, self._make_view = pretrained, make_view
        common = {"style": _LABEL, "layout": widgets.Layout(**_WIDE)}
        first, *_ = heads.RECORDED
        self.sentence = widgets.Text(
            value=first,
            description="Sentence",
            continuous_update=False,  # Enter, or leaving the field, looks
            **common,
        )
        examples = [("choose one", ""), *((text, text) for text in heads.RECORDED)]
        self.example = widgets.Dropdown(options=examples, description="Or an example", **common)
        self.button = widgets.Button(description="Look")
        config = pretrained.config
        self.layer = _numbers("Layer", config["num_hidden_layers"])
        self.head = _numbers("Head", config["num_attention_heads"])
        self.outcome, self.view = widgets.HTML(), widgets.Output()
        self.box = widgets.VBox(
            [self.sentence, self.example, self.button, self.layer, self.head, self.outcome, self.view]
        )
        self.sentence.observe(self._look, "value")
        self.example.observe(self._on_example, "value")
        self.button.on_click(self._look)
        self.layer.observe(self._look, "value")
        self.head.observe(self._look, "value")
        self._look()

    def _on_example(self, _=None) -> None:
        if self.example.value:
            self.sentence.value = self.example.value

    def _look(self, _=None) -> None:
        text = self.sentence.value
        try:
            tokens, weights = heads.look(self._pretrained, text)
        except heads.Unreadable as error:
            self.outcome.value = _status(str(error))
            with self.view:
                clear_output()
            return
        self.outcome.value = _status(_counted(tokens))
        start = (self.layer.value, self.head.value, 1)  # the first word: [CLS] stands before it
        with self.view:
            clear_output(wait=True)
            display(self._make_view([(tokens, weights)], names=[text], start=start))


def _numbers(name: str, count: int) -> widgets.Dropdown:
    options = [(str(number + 1), number) for number in range(count)]
    return widgets.Dropdown(options=options, description=name, style=_LABEL)


def _counted(tokens: list[str]) -> str:
    """How many tokens there are, and which of them are pieces of a word."""
    said = f"{len(tokens)} tokens, with [CLS] and [SEP]."
    pieces = [token for token in tokens if token.startswith("##")]
    return f"{said} {', '.join(pieces)}: such pieces go on with the word before." if pieces else said


def _status(sentence: str) -> str:
    """What a screen reader is to say when it changes."""
    return f'<div role="status"><p>{escape(sentence)}</p></div>'
