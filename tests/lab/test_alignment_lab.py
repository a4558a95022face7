"""The alignment lab: what is typed is read or answered, and the widgets show what the functions say."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from attention_course import seq2seq
from attention_course.lab.data import translation
from attention_course.lab.data.pairs import BOS, EOS, Pair, collate
from attention_course.lab.experiments import alignment
from attention_course.lab.experiments.alignment import Unreadable, Written, gold, parse, translate
from attention_course.lab.experiments.alignment_widget import EXAMPLES, AlignmentLab
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.page import plotting
from attention_course.lab.train.loop import History
from attention_course.lab.train.translators import Run

ROOT = Path(__file__).resolve().parents[2]

KARA = ("kuma", "wa", "inu", "o", "mita", "kara", "watashi", "wa", "neko", "desu")


@pytest.fixture(scope="module")
def task():
    return translation.task(0, train=10, per_bucket=20)


@pytest.fixture(scope="module")
def model():
    """Untrained: what it writes makes no sense, and is the same each time."""
    torch.manual_seed(1)
    model = seq2seq.recurrent(
        seq2seq.BahdanauDecoder,
        len(translation.SOURCE),
        len(translation.TARGET),
        embedding_dim=8,
        hidden_size=8,
    )
    return model.eval()


@pytest.fixture
def lab(model):
    return AlignmentLab(model)


def perfect(pair, source=None):
    """What a model writes that is right and looks where it should."""
    words = (*pair.target, "<eos>")
    weights = torch.full((len(words), len(source or pair.source)), 0.01)
    for t, j in enumerate(pair.alignment):
        weights[t, j] = 0.9
    return Written(words, weights, tuple(((one, 1.0),) for one in words), (1.0,) * len(words))


# Reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "watashi wa neko desu",
        "  Watashi  WA\tneko\ndesu. ",
        "Watashi wa, neko desu!",
        "watashi wa neko desu。",
    ],
)
def test_capitals_spaces_and_stops_do_not_matter(text):
    assert parse(text) == ("watashi", "wa", "neko", "desu")


def test_a_hyphen_belongs_to_its_word():
    assert parse("hen-na neko") == ("hen-na", "neko")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Type a sentence"),
        (" . ,", "Type a sentence"),
        ("neko " * 41, "has 41 words; the lab takes up to 40"),
        ("neko wa " * 500_000, "has 1000000 words"),
        ("nekko wa inu desu", "“nekko” is not in the lexicon; did you mean “neko”?"),
        ("xyzzy", "“xyzzy” is not in the lexicon."),
        ("the cat", "“cat” is English; in the lexicon it is “neko”."),
        ("I wa neko desu", "in the lexicon it is “watashi”"),
        ("<eos>", "“<eos>” is not in the lexicon"),
        ("猫は犬です", "Write Japanese in Latin letters"),
        ("neko" * 1000, "“nekonekonekonekoneko” is not in the lexicon"),
    ],
)
def test_what_cannot_be_read_gets_a_sentence_that_helps(text, words):
    with pytest.raises(Unreadable, match=re.escape(words)):
        parse(text)


def test_at_most_three_unknown_words_are_named_each_once():
    with pytest.raises(Unreadable) as caught:
        parse("q1 q1 q2 q3 q4 neko")
    assert str(caught.value).count("not in the lexicon") == 3 and "q4" not in str(caught.value)


def test_the_longest_that_is_read_are_the_longest_of_the_test_sentences(task):
    assert max(len(pair.source) for pair in task.beyond) <= alignment.LONGEST == 40
    assert len(parse("neko " * 40)) == 40


# The grammar, read back -----------------------------------------------------------------------


def test_the_grammars_own_sentences_come_back_whole(task):
    for pair in (*task.train, *task.test, *task.validation, *task.beyond):
        assert gold(pair.source) == pair
        assert parse(" ".join(pair.source)) == pair.source


@pytest.mark.parametrize(
    "text",
    [
        "neko",
        "neko wa",
        "wa neko desu",
        "inu o kuma wa mita",
        "kuma wa mita",
        "kuma wa o mita",
        "kuma wa inu mita",
        "kuma wa inu o",
        "neko wa kuroi inu desu",
        "neko wa hon desu",
        "hon wa neko o mita",
        "ookii watashi wa neko o mita",
        "ookii kuroi neko wa inu o mita",
        "watashi wa watashi o mita",
        "kuma wa inu de hon o mita",
        "kuma wa ookii mori de hon o mita",
        "kuma wa mori o mita",
        "soshite neko wa inu desu",
        "neko wa inu desu soshite",
        "neko wa inu desu kara",
        "neko wa inu desu kara neko wa inu desu kara neko wa inu desu",
        "neko wa inu wa desu",
    ],
)
def test_what_the_grammar_cannot_make_has_no_translation(text):
    assert gold(parse(text)) is None


# Translating ----------------------------------------------------------------------------------


def test_it_writes_what_greedy_decoding_writes(model, task):
    for pair in task.test[::30]:
        batch = collate([pair], task)
        numbers, weights = seq2seq.greedy(
            model, batch.source, batch.lengths, bos=BOS, eos=EOS, max_length=2 * len(pair.source) + 4
        )
        written = translate(model, pair.source)
        assert written.words == tuple(task.target.words[number] for number in numbers[0])
        torch.testing.assert_close(written.weights, weights[0])


def test_every_step_has_its_choices(model):
    written = translate(model, KARA)
    assert written.weights.shape == (len(written.words), len(KARA)) and not written.weights.requires_grad
    torch.testing.assert_close(written.weights.sum(-1), torch.ones(len(written.words)))
    for one, probability, choices in zip(written.words, written.probabilities, written.choices, strict=True):
        shares = [share for _, share in choices]
        assert choices[0] == (one, pytest.approx(probability))  # the likeliest is the one written
        assert shares == sorted(shares, reverse=True) and 0 < sum(shares) <= 1.0001
        assert len({word for word, _ in choices}) == alignment.CHOICES


def test_what_is_begun_is_kept_and_the_rest_follows_from_it(model):
    own = translate(model, KARA)
    again = translate(model, KARA, own.words[:3])
    assert again.words == own.words and again.probabilities == own.probabilities
    other = own.choices[2][3][0]
    changed = translate(model, KARA, (*own.words[:2], other))
    assert changed.words[:3] == (*own.words[:2], other)
    assert changed.probabilities[2] == pytest.approx(own.choices[2][3][1])
    # the query of the next step is the state before that step: it has not read the word yet
    assert torch.equal(changed.weights[:4], own.weights[:4])
    assert not torch.equal(changed.weights[4], own.weights[4])


def test_it_stops_at_the_end_sign_and_where_the_room_ends(model):
    assert translate(model, KARA, ("cat", "<eos>")).words == ("cat", "<eos>")
    assert translate(model, KARA, ("cat", "<eos>")).sentence == ("cat",)
    endless = translate(model, KARA, ("cat",) * 100)
    assert len(endless.words) == 2 * len(KARA) + 4


def test_words_without_a_number_are_refused(model):
    with pytest.raises(ValueError, match="words must be in the vocabulary"):
        translate(model, ("neko", "cat"))
    with pytest.raises(ValueError, match="words must be in the vocabulary"):
        translate(model, ("neko",), ("neko",))


def test_the_recipe_is_chapter_1s(monkeypatch, task):
    asked = {}

    def learn(build, task, **recipe):
        asked.update(recipe)
        model = build()
        return Run(model, count_parameters(model), History())

    monkeypatch.setattr(alignment, "learn", learn)
    assert alignment.trained(task).parameters == 71_010
    assert asked == {"seed": 0, "steps": 600, "learning_rate": 0.01, "batch_size": 32}
    chapter = json.loads((ROOT / "book" / "01_bottleneck.ipynb").read_text(encoding="utf8"))
    code = "".join("".join(cell["source"]) for cell in chapter["cells"] if cell["cell_type"] == "code")
    code = re.sub(r"\s+", " ", code)
    for part in (
        "STEPS, BATCH = 600, 32",
        "seq2seq.BahdanauDecoder, embedding_dim=32, hidden_size=64",
        "job(ATTENDING, task, seed, 0.01)",
    ):
        assert part in code


# Showing --------------------------------------------------------------------------------------


def test_the_verdict():
    pair = gold(KARA)
    assert alignment.verdict(perfect(pair), pair) == "Right, from the first word to the last."
    assert "cannot make this sentence" in alignment.verdict(perfect(pair), None)
    wrong = Pair(pair.source, ("I", "am", "a", "dog"), pair.alignment[:4])
    said = alignment.verdict(perfect(wrong), pair)
    assert said == f"Not right from word 4 on. The grammar says: {' '.join(pair.target)}"
    cut = perfect(pair)
    cut = Written(cut.words[:-1], cut.weights[:-1], cut.choices[:-1], cut.probabilities[:-1])
    assert f"Not right from word {len(pair.target) + 1} on" in alignment.verdict(cut, pair)


def marks(fig):
    return [(*line.get_xdata(), *line.get_ydata()) for line in fig.axes[0].lines]


def test_the_heatmap_names_its_words_and_marks_the_gold_alignment():
    pair = gold(KARA)
    fig = alignment.figure(KARA, perfect(pair), pair)
    ax = fig.axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == [*KARA]
    assert [label.get_text() for label in ax.get_yticklabels()] == [*pair.target, "<eos>"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("keys", "queries")
    assert marks(fig) == [(j + 0.5, t + 0.5) for t, j in enumerate(pair.alignment) if j >= 0]
    plt.close(fig)


def test_marks_end_at_the_first_wrong_word():
    pair = gold(KARA)
    wrong = Pair(pair.source, ("I", "am", "a", "dog", *pair.target[4:]), pair.alignment)
    fig = alignment.figure(KARA, perfect(wrong), pair)
    assert len(marks(fig)) == 2  # "I" and "am"; the article has none
    none = alignment.figure(KARA, perfect(wrong), None)
    assert marks(none) == []
    plt.close(fig), plt.close(none)


def test_the_table_and_the_alternative_text_say_where_each_word_looks():
    pair = gold(KARA)
    written = perfect(pair)
    rows = alignment.rows(KARA, written)
    assert rows[0] == ("I", "1.00", "watashi (7)", "0.90")
    assert rows[3][2] == "neko (9)" and len(rows) == len(written.words)
    text = alignment.alt(KARA, written)
    assert " ".join(KARA) in text and "cat at neko (9)" in text
    html = alignment.html_table(KARA, written)
    assert html.count("<tr>") == len(rows) + 1 and '<th scope="row">&lt;eos&gt;</th>' in html
    fig = alignment.figure(KARA, written, pair)
    assert "cat at neko (9)" in plotting.svg(fig, text)
    plt.close(fig)


# The widgets ----------------------------------------------------------------------------------


def test_a_sentence_that_is_typed_is_translated(lab, model):
    lab.sentence.value = "neko wa inu o mita"
    source = parse("neko wa inu o mita")
    own = translate(model, source)
    assert f"{' '.join(source)} → {' '.join(own.sentence)}" in lab.outcome.value
    assert "The grammar says: the cat saw the dog" in lab.outcome.value
    assert 'role="status"' in lab.outcome.value
    assert 'role="img"' in lab.heatmap.value and " ".join(source) in lab.heatmap.value
    assert alignment.html_table(source, own) in lab.table.value
    assert plt.get_fignums() == []


def test_it_starts_with_a_translation(lab):
    assert lab.heatmap.value and lab.sentence.value == EXAMPLES["two clauses that cross"]


def test_what_cannot_be_read_is_answered_and_nothing_old_is_left(lab):
    lab.position.value = 1
    lab.sentence.value = "<script>alert(1)</script>"
    assert "is not in the lexicon" in lab.outcome.value and "<script>" not in lab.outcome.value
    assert lab.heatmap.value == lab.table.value == ""
    assert lab.position.value == -1 and len(lab.position.options) == 1
    assert lab.instead.options == () and lab.instead.disabled
    lab.sentence.value = "neko wa inu desu"
    assert lab.heatmap.value and len(lab.position.options) > 1


def test_examples_fill_the_sentence_in(lab, model):
    for text in EXAMPLES.values():
        if text:
            lab.example.value = text
            assert lab.sentence.value == text
            assert " ".join(parse(text)) in lab.outcome.value
    lab.example.value = ""
    assert lab.sentence.value == text
    longest = max(len(parse(text)) for text in EXAMPLES.values() if text)
    assert longest <= translation.LONGEST


def test_one_word_is_changed_and_taken_back(lab, model):
    source = parse(lab.sentence.value)
    own = translate(model, source)
    before = lab.heatmap.value
    assert lab.instead.disabled
    lab.position.value = 1
    offered = [value for _, value in lab.instead.options]
    assert offered == [one for one, _ in own.choices[1][1:]] and not lab.instead.disabled
    for other in (offered[0], offered[2]):
        lab.instead.value = other
        changed = translate(model, source, (own.words[0], other))
        assert f"You wrote “{other}” instead of “{own.words[1]}” as word 2." in lab.outcome.value
        assert " ".join(changed.sentence) in lab.outcome.value
        assert alignment.html_table(source, changed) in lab.table.value
    lab.position.value = -1
    assert "You wrote" not in lab.outcome.value and lab.heatmap.value == before
    assert lab.instead.disabled


def test_a_new_sentence_forgets_the_change(lab):
    lab.position.value = 2
    assert "You wrote" in lab.outcome.value
    lab.sentence.value = "neko wa inu desu"
    assert "You wrote" not in lab.outcome.value and lab.position.value == -1


def test_the_button_translates_again(lab):
    lab.position.value = 0
    lab.button.click()
    assert "You wrote" not in lab.outcome.value and lab.position.value == -1


def test_every_input_is_labelled_and_none_is_a_slider(lab):
    inputs = [lab.sentence, lab.example, lab.button, lab.position, lab.instead]
    assert len({one.description for one in inputs}) == 5 and all(one.description for one in inputs)
    assert set(inputs) <= set(lab.box.children)
    assert not any("Slider" in type(one).__name__ for one in lab.box.children)
