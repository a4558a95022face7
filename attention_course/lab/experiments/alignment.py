"""The alignment lab: a sentence somebody typed, its translation, and where each word looked.

Everything here is a function of a sentence and a model; the inputs and buttons are in
``alignment_widget``. The model is chapter 1's translator that attends (Bahdanau et al. 2015).
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from html import escape
from itertools import takewhile

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from attention_course.lab.data import translation
from attention_course.lab.data.pairs import BOS, EOS, Pair, Task
from attention_course.lab.data.translation import SOURCE, TARGET
from attention_course.lab.page import plotting
from attention_course.lab.train.translators import Run, learn
from attention_course.seq2seq import BahdanauDecoder, EncoderDecoder, recurrent

#: Sentences of more words than this are not read: no test sentence of the book has more.
LONGEST = translation.BEYOND[1]

#: How many of the likeliest words are kept at every step.
CHOICES = 6

#: English word -> Japanese word, for whoever types the wrong one.
_ENGLISH = {
    english: japanese
    for words in (
        translation.ANIMALS_AND_PEOPLE, translation.THINGS, translation.PLACES, translation.ADJECTIVES,
        translation.VERBS, translation.JOINERS,
        {"watashi": "I", "de": "in", "kara": "because"},
    )
    for japanese, english in words.items()
}  # fmt: skip


def trained(task: Task) -> Run:
    """Train chapter 1's translator that attends, by that chapter's recipe and with its first seed."""
    build = partial(
        recurrent, BahdanauDecoder, len(task.source), len(task.target), embedding_dim=32, hidden_size=64
    )
    return learn(build, task, seed=0, steps=600, learning_rate=0.01, batch_size=32)


# Reading --------------------------------------------------------------------------------------


class Unreadable(ValueError):
    """A sentence the model has no numbers for; the message is for whoever typed it."""


def parse(text: str) -> tuple[str, ...]:
    """Return the words of ``text``, whatever its capitals and full stops.

    Raises ``Unreadable`` for no words, more than ``LONGEST``, and words that are not in the lexicon,
    with the nearest that are.
    """
    words = tuple(re.findall(r"[^\s.,;:!?\"。、]+", text.casefold()))
    if not words:
        raise Unreadable("Type a sentence, such as: watashi wa neko desu")
    if len(words) > LONGEST:
        raise Unreadable(f"The sentence has {len(words)} words; the lab takes up to {LONGEST}.")
    known = SOURCE.words[3:]  # behind <pad>, <bos> and <eos>
    unknown = dict.fromkeys(word for word in words if word not in known)
    if unknown:
        raise Unreadable(" ".join(_unknown(word, known) for word in [*unknown][:3]))
    return words


def _unknown(word: str, known: Sequence[str]) -> str:
    english = {key.casefold(): japanese for key, japanese in _ENGLISH.items()}
    if word in english:
        return f"“{word}” is English; in the lexicon it is “{english[word]}”."
    if not word.isascii():
        return f"“{word[:20]}” is not in the lexicon. Write Japanese in Latin letters, as below."
    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"“{word[:20]}” is not in the lexicon" + (f"; did you mean “{near[0]}”?" if near else ".")


def gold(source: Sequence[str]) -> Pair | None:
    """Return ``source`` with the grammar's own translation and alignment, or ``None`` if it has none."""
    whole = None
    for joiner, unit in _split(source, translation.JOINERS):
        clauses = [_clause(words) for _, words in _split(unit, ("kara",))]
        if None in clauses or len(clauses) > 2:
            return None
        pair = translation.because(*clauses) if len(clauses) == 2 else clauses[0]
        if joiner:
            pair = translation.compose(
                [whole, translation.word(joiner, translation.JOINERS[joiner]), pair], (0, 1, 2)
            )
        whole = pair
    return whole


def _split(source: Sequence[str], marks: Collection[str]) -> list[tuple[str, list[str]]]:
    """The stretches between ``marks``, each with the mark before it."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for word in source:
        if word in marks:
            parts.append((word, []))
        else:
            parts[-1][1].append(word)
    return parts


def _clause(words: Sequence[str]) -> Pair | None:
    living, places = translation.ANIMALS_AND_PEOPLE, translation.PLACES
    if "wa" not in words:
        return None
    cut = words.index("wa")
    subject = translation.word("watashi", "I") if words[:cut] == ["watashi"] else _phrase(words[:cut], living)
    match subject, *words[cut + 1 :]:
        case Pair(), noun, "desu" if noun in living:
            return translation.being(subject, translation.word(noun, living[noun]))
        case Pair(), place, "de", *thing, "o", verb if place in places and verb in translation.VERBS:
            place = translation.noun_phrase(translation.word(place, places[place]))
        case Pair(), *thing, "o", verb if verb in translation.VERBS:
            place = None
        case _:
            return None
    thing = _phrase(thing, living | translation.THINGS)
    return thing and translation.doing(subject, thing, translation.word(verb, translation.VERBS[verb]), place)


def _phrase(words: Sequence[str], nouns: dict[str, str]) -> Pair | None:
    match words:
        case [noun] if noun in nouns:
            return translation.noun_phrase(translation.word(noun, nouns[noun]))
        case [adjective, noun] if adjective in translation.ADJECTIVES and noun in nouns:
            english = translation.ADJECTIVES[adjective]
            return translation.noun_phrase(
                translation.word(noun, nouns[noun]), translation.word(adjective, english)
            )
    return None


# Translating ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """What a model wrote, and what it could have written: one entry for each word and for <eos>.

    ``weights`` [T_q, T_k]; ``choices[t]`` holds the likeliest words at step t, each with its
    probability given the words before it. Without <eos> at the end, the room was used up.
    """

    words: tuple[str, ...]
    weights: Float[Tensor, "T_q T_k"]
    choices: tuple[tuple[tuple[str, float], ...], ...]
    probabilities: tuple[float, ...]

    @property
    def sentence(self) -> tuple[str, ...]:
        """The words without <eos>."""
        return tuple(word for word in self.words if word != "<eos>")


@torch.no_grad()
def translate(model: EncoderDecoder, source: Sequence[str], begun: Sequence[str] = ()) -> Written:
    """Return the model's greedy translation of ``source`` that begins with the words ``begun``.

    What is begun is fed in as if the model had chosen it; from there on it goes its own way.
    """
    numbers, fixed = torch.tensor([SOURCE.encode(source)]), TARGET.encode(begun)
    memory, state = model.read(numbers, torch.tensor([len(source)])), None
    token, chosen, weights, rows = BOS, [], [], []
    for step in range(2 * len(source) + 4):  # room for a model that does not stop in time
        logits, weight, state = model.decoder(torch.tensor([[token]]), memory, state)
        row = logits[0, -1].softmax(-1)  # [vocabulary]
        token = fixed[step] if step < len(fixed) else row.argmax().item()
        chosen.append(token)
        weights.append(weight[0, -1])
        rows.append(row)
        if token == EOS:
            break
    return Written(
        tuple(TARGET.words[token] for token in chosen),
        torch.stack(weights),
        tuple(map(_likeliest, rows)),
        tuple(row[token].item() for row, token in zip(rows, chosen, strict=True)),
    )


def _likeliest(row: Float[Tensor, " vocabulary"]) -> tuple[tuple[str, float], ...]:
    top = row.topk(CHOICES)
    return tuple(
        (TARGET.words[number], share)
        for number, share in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    )


def agreeing(written: Written, right: Pair) -> int:
    """Return how many words are right before the first that is not."""
    both = zip(written.sentence, right.target, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], both))


# Showing --------------------------------------------------------------------------------------


def figure(source: Sequence[str], written: Written, right: Pair | None) -> Figure:
    """Return the heatmap: written words down, ``source`` across; white squares mark the gold alignment.

    They are there for as long as the translation is the right one: behind a wrong word nobody can
    say where the next should look.
    """
    cell = 0.36 if len(source) <= 20 else 0.26  # inches
    fig, ax = plotting.figure(max(4.5, 1.6 + cell * len(source)), 1.3 + cell * len(written.words))
    plotting.heatmap(ax, written.weights.numpy(), written.words, source)
    for t, j in enumerate(right.alignment[: agreeing(written, right)] if right else ()):
        if j >= 0:
            ax.plot(j + 0.5, t + 0.5, "s", markersize=6, markerfacecolor="#FFFFFE", markeredgecolor="#111112")
    return fig


def alt(source: Sequence[str], written: Written) -> str:
    """Return in words what the heatmap shows: for every written word, where it looks most."""
    looks = ", ".join(f"{word} at {where}" for word, _, where, _ in rows(source, written))
    return f"Attention weights for {' '.join(source)}. Where each written word looks most: {looks}."


HEADER = ("written", "probability", "looks most at", "weight")


def rows(source: Sequence[str], written: Written) -> list[tuple[str, str, str, str]]:
    """Return the heatmap as a table under ``HEADER``; positions count from 1."""
    found = []
    for t, (word, probability) in enumerate(zip(written.words, written.probabilities, strict=True)):
        j = written.weights[t].argmax().item()
        found.append((word, f"{probability:.2f}", f"{source[j]} ({j + 1})", f"{written.weights[t, j]:.2f}"))
    return found


def verdict(written: Written, right: Pair | None) -> str:
    """Return one sentence on what the grammar says to a translation."""
    if right is None:
        return "The grammar cannot make this sentence, so it has no right translation to compare with."
    if written.sentence == right.target and written.words[-1] == "<eos>":
        return "Right, from the first word to the last."
    same = agreeing(written, right)
    return f"Not right from word {same + 1} on. The grammar says: {' '.join(right.target)}"


def html_table(source: Sequence[str], written: Written) -> str:
    """Return ``rows`` as an HTML table, for a frontend that is handed HTML."""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADER)
    body = "".join(
        f'<tr><th scope="row">{escape(word)}</th>'
        + "".join(f"<td>{escape(entry)}</td>" for entry in rest)
        + "</tr>"
        for word, *rest in rows(source, written)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
