"""The lab of heads: what is typed is read or answered, and the view holds what the model did."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from attention_course.explorables import head_view
from attention_course.inside import pretrained as pretrained_
from attention_course.lab.experiments import heads_widget
from attention_course.lab.experiments.heads import LONGEST, RECORDED, Unreadable, determiners, look, shares
from attention_course.lab.experiments.heads_widget import HeadLab

ROOT = Path(__file__).resolve().parents[2]

CONFIG = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 3,
    "intermediate_size": 16,
    "layer_norm_eps": 1e-12,
    "vocab_size": 50,
    "max_position_embeddings": 4096,
    "type_vocab_size": 2,
}


class Words:
    """A tokenizer that gives each word a number, and cuts words of more than eight letters in two."""

    class Encoding:
        def __init__(self, tokens):
            self.tokens = tokens
            self.ids = [sum(map(ord, token)) % CONFIG["vocab_size"] for token in tokens]

    def encode_batch(self, sentences):
        cut = [re.findall(r"\w+|[^\w\s]", sentence.lower()) for sentence in sentences]
        pieces = [
            [piece for word in words for piece in ([word[:8], "##" + word[8:]] if len(word) > 8 else [word])]
            for words in cut
        ]
        return [self.Encoding(["[CLS]", *tokens, "[SEP]"]) for tokens in pieces]


@pytest.fixture(scope="module")
def small():
    """The model's architecture, untrained: what it does makes no sense, and is the same each time."""
    torch.manual_seed(1)
    model = pretrained_._architecture(CONFIG).eval()
    return pretrained_.Pretrained(model, Words(), CONFIG)


@pytest.fixture
def shown(monkeypatch):
    """What was displayed, the last one last; an emptied view leaves ``None``."""
    found = []
    monkeypatch.setattr(heads_widget, "display", found.append)
    monkeypatch.setattr(heads_widget, "clear_output", lambda wait=False: wait or found.append(None))
    return found


@pytest.fixture
def lab(small, shown):
    return HeadLab(small, head_view)


def data(view):
    """The first sentence that a view holds, and where it starts."""
    found = json.loads(re.search(r"^const data = (.*);$", view.html, re.MULTILINE)[1])
    return found["sentences"][0], found["start"]


# Reading --------------------------------------------------------------------------------------


def test_the_weights_are_the_models(small):
    tokens, weights = look(small, "The cat sat.")
    assert tokens == ["[CLS]", "the", "cat", "sat", ".", "[SEP]"]
    assert weights.shape == (3, 2, 6, 6) and not weights.requires_grad
    batch = small.tokens(["The cat sat."])
    _, expected = small.model(batch.tokens, need_weights=True)
    for layer in range(3):
        torch.testing.assert_close(weights[layer], expected[layer][0])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Type a sentence, such as"),
        (" \t\n", "Type a sentence, such as"),
        ("cat " * (LONGEST - 1), "The sentence has 65 tokens with [CLS] and [SEP]; the lab takes up to 64."),
        ("cat " * 1_000_000, "The sentence has 4,000,000 characters"),
    ],
)
def test_what_is_not_shown_gets_a_sentence_that_helps(small, text, words):
    with pytest.raises(Unreadable, match=re.escape(words)):
        look(small, text)


def test_as_many_tokens_as_are_promised(small):
    tokens, _ = look(small, "cat " * (LONGEST - 2))
    assert len(tokens) == LONGEST == 64


# What heads look for --------------------------------------------------------------------------


def test_determiners_point_to_their_nouns():
    sentence = ["[CLS]", "the", "cat", "saw", "a", "big", "cat", "[SEP]"]
    looked = determiners([sentence, sentence[:4]], [("cat", "cat"), ()])
    assert looked.shape == (2, 8, 8) and not looked[1].any()
    assert looked[0].nonzero().tolist() == [[1, 2], [4, 6]]


def test_recorded_sentences_have_their_nouns_behind_their_determiners(small):
    assert len(RECORDED) == 8
    texts = list(RECORDED)
    words = [sorted(re.findall(r"\w+", text.lower())) for text in (texts[0], texts[-1])]
    assert words[0] == words[1] and texts[0] != texts[-1]  # the same words, shuffled
    for text, nouns in RECORDED.items():
        tokens, _ = look(small, text)
        [looked] = determiners([tokens], [nouns])
        assert tuple(tokens[place] for _, place in looked.nonzero().tolist()) == nouns
        count = sum(token in ("the", "a", "her") for token in tokens)
        assert len(nouns) in (0, count)


# The widgets ----------------------------------------------------------------------------------


def test_it_starts_with_a_view(lab, shown, small):
    tokens, weights = look(small, next(iter(RECORDED)))
    sentence, start = data(shown[-1])
    assert sentence["tokens"] == tokens and start == [0, 0, 1]
    got = np.frombuffer(base64.b64decode(sentence["weights"]), np.uint8).reshape(weights.shape)
    np.testing.assert_allclose(got / 255, weights, atol=1 / 510 + 1e-6)


def test_a_sentence_that_is_typed_is_looked_at(lab, shown):
    lab.sentence.value = "Two <b>dogs"
    sentence, _ = data(shown[-1])
    assert sentence["name"] == "Two <b>dogs" and "<b>" in "".join(sentence["tokens"])
    assert "7 tokens, with [CLS] and [SEP]." in lab.outcome.value and 'role="status"' in lab.outcome.value


def test_layer_and_head_are_where_the_view_begins(lab, shown):
    lab.layer.value, lab.head.value = 2, 1
    assert data(shown[-1])[1] == [2, 1, 1]
    assert [label for label, _ in lab.layer.options] == ["1", "2", "3"]
    assert [label for label, _ in lab.head.options] == ["1", "2"]
    lab.sentence.value = "Another one"
    assert data(shown[-1])[1] == [2, 1, 1]


@pytest.mark.parametrize("text", ["", "   ", "cat " * 70, "x" * 5000])
def test_bad_input_gets_a_sentence_and_nothing_old_is_left(lab, shown, text):
    lab.sentence.value = text or " "
    lab.sentence.value = text
    assert ("Type a sentence" in lab.outcome.value) or ("takes up to 64" in lab.outcome.value)
    assert "Traceback" not in lab.outcome.value
    assert shown[-1] is None
    lab.sentence.value = "the cat"
    assert data(shown[-1])[0]["tokens"] == ["[CLS]", "the", "cat", "[SEP]"]


def test_pieces_of_words_are_explained(lab):
    assert "##" not in lab.outcome.value
    lab.sentence.value = "unhurriedly"
    assert "##dly: such pieces go on with the word before." in lab.outcome.value


def test_examples_fill_the_sentence_in(lab, shown):
    for text in RECORDED:
        lab.example.value = text
        assert lab.sentence.value == text and data(shown[-1])[0]["name"] == text
    lab.example.value = ""
    assert lab.sentence.value == text


def test_the_button_looks_again(lab, shown):
    before = len(shown)
    lab.button.click()
    assert len(shown) == before + 1


def test_the_pages_cell_makes_the_lab_and_the_built_page_shows_none_of_it(small, shown):
    page = json.loads((ROOT / "book" / "head_lab.ipynb").read_text(encoding="utf8"))
    (cell,) = (cell for cell in page["cells"] if "HeadLab" in "".join(cell["source"]))
    assert cell["metadata"]["tags"] == ["remove-cell"]  # neither inputs nor a bar that promises them
    names = {"encoder": small, "head_view": head_view}
    exec("".join(cell["source"]), names)
    assert len(shown) == 1 and data(shown[0])[0]["name"] == next(iter(RECORDED))


def test_every_input_is_labelled(lab):
    inputs = [lab.sentence, lab.example, lab.button, lab.layer, lab.head]
    assert len({one.description for one in inputs}) == 5 and all(one.description for one in inputs)
    assert set(inputs) <= set(lab.box.children)


# The real model -------------------------------------------------------------------------------


def test_the_recorded_sentences_show_what_the_page_says():
    """Skipped where the weights are not installed: no test asks the network."""
    pytest.importorskip(pretrained_.PACKAGE)
    real = pretrained_.load()
    found = shares(real)
    best = {name: share.max().item() for name, share in found.items()}
    assert best["the token before"] > 0.95 and best["the token after"] > 0.5 and best["[CLS]"] > 0.6
    for name in ("the same word elsewhere", "from a determiner to its noun"):
        assert best[name] > 3 * found[name].mean()
    assert max(len(look(real, text)[0]) for text in RECORDED) <= 20
