"""The inputs of the alignment lab: what is typed and chosen goes to ``alignment``, HTML comes back."""

from html import escape

import ipywidgets as widgets
import matplotlib.pyplot as plt

from attention_course.lab.experiments import alignment
from attention_course.lab.page import plotting
from attention_course.seq2seq import EncoderDecoder

#: label -> sentence, to choose instead of typing
EXAMPLES = {
    "choose one": "",
    "four words": "watashi wa neko desu",
    "an adjective and a place": "chiisai tori wa mori de akai boushi o mitsuketa",
    "two clauses that cross": "kuma wa shiroi inu o mita kara watashi wa neko desu",
    "the object first": "shiroi inu o kuma wa mita",
    "the same noun twice": "kuroi neko wa shiroi neko o mita",
    "an adjective before desu": "neko wa kuroi inu desu",
    "no object": "kuma wa mita",
}
_OWN = ("no word: the model's own translation", -1)
_LABEL = {"description_width": "9em"}
_WIDE = {"width": "100%", "max_width": "46em"}


class AlignmentLab:
    """The lab's widgets, wired together; their values are all the state there is.

    ``sentence`` is what is translated, ``example`` fills it in, ``position`` and ``instead`` change
    one word of the translation. ``outcome``, ``heatmap`` and ``table`` show what came of it. ``box``
    holds them all.
    """

    def __init__(self, model: EncoderDecoder) -> None:
        self._model = model
        common = {"style": _LABEL, "layout": widgets.Layout(**_WIDE)}
        self.sentence = widgets.Text(
            value=EXAMPLES["two clauses that cross"],
            description="Sentence",
            continuous_update=False,  # Enter, or leaving the field, translates
            **common,
        )
        self.example = widgets.Dropdown(options=list(EXAMPLES.items()), description="Or an example", **common)
        self.button = widgets.Button(description="Translate")
        self.position = widgets.Dropdown(description="Change", options=[_OWN], **common)
        self.instead = widgets.Dropdown(description="Write instead", options=[], disabled=True, **common)
        self.outcome, self.heatmap, self.table = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.box = widgets.VBox(
            [
                self.sentence, self.example, self.button, self.outcome,
                self.position, self.instead, self.heatmap, self.table,
            ]
        )  # fmt: skip
        self.sentence.observe(self._on_sentence, "value")
        self.example.observe(self._on_example, "value")
        self.button.on_click(self._on_sentence)
        self.position.observe(self._on_position, "value")
        self.instead.observe(self._on_instead, "value")
        self._on_sentence()

    def _on_example(self, _=None) -> None:
        if self.example.value:
            self.sentence.value = self.example.value

    def _on_sentence(self, _=None) -> None:
        try:
            source = alignment.parse(self.sentence.value)
        except alignment.Unreadable as error:
            self._choose(self.position, [_OWN])
            self._choose(self.instead, [])
            self.outcome.value = _status(str(error))
            self.heatmap.value = self.table.value = ""
            return
        own = alignment.translate(self._model, source)
        places = [(f"word {t + 1}: {word}", t) for t, word in enumerate(own.words)]
        self._choose(self.position, [_OWN, *places])
        self._choose(self.instead, [])
        self._show(source, own, "")

    def _on_position(self, _=None) -> None:
        """The likeliest other word is written at once; the list offers those after it."""
        source = alignment.parse(self.sentence.value)
        own, t = alignment.translate(self._model, source), self.position.value
        others = [] if t < 0 else [choice for choice in own.choices[t] if choice[0] != own.words[t]]
        self._choose(self.instead, [(f"{word} ({_share(p)})", word) for word, p in others])
        self._on_instead()

    def _on_instead(self, _=None) -> None:
        source = alignment.parse(self.sentence.value)
        own, t = alignment.translate(self._model, source), self.position.value
        if t < 0:
            return self._show(source, own, "")
        changed = alignment.translate(self._model, source, (*own.words[:t], self.instead.value))
        note = f"You wrote “{self.instead.value}” instead of “{own.words[t]}” as word {t + 1}."
        return self._show(source, changed, note)

    def _choose(self, dropdown: widgets.Dropdown, options: list) -> None:
        """Offer other options, of which the first is chosen, without telling anybody."""
        handler = self._on_position if dropdown is self.position else self._on_instead
        dropdown.unobserve(handler, "value")
        dropdown.options = options
        dropdown.index = 0 if options else None
        dropdown.disabled = not options
        dropdown.observe(handler, "value")

    def _show(self, source: tuple[str, ...], written: alignment.Written, note: str) -> None:
        right = alignment.gold(source)
        self.outcome.value = _status(
            f"{' '.join(source)} → {' '.join(written.sentence)}", note, alignment.verdict(written, right)
        )
        fig = alignment.figure(source, written, right)
        self.heatmap.value = plotting.svg(fig, alignment.alt(source, written))
        plt.close(fig)
        self.table.value = (
            '<details><summary style="display: list-item; cursor: pointer">The same as a table</summary>'
            f"{alignment.html_table(source, written)}</details>"
        )


def _share(probability: float) -> str:
    return f"probability {probability:.2f}" if probability >= 0.005 else "probability below 0.01"


def _status(*sentences: str) -> str:
    """What a screen reader is to say when it changes."""
    paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences if sentence)
    return f'<div role="status">{paragraphs}</div>'
