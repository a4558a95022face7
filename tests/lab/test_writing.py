"""The small models that write: of one size, judged on the text they are asked about."""

import math

import pytest
import torch

from attention_course.lab.data.text import SYMBOLS, documentation
from attention_course.lab.experiments import writing
from attention_course.lab.measure.numbers import count_parameters


def test_all_are_of_one_size_whoever_shares_keys():
    sizes = [count_parameters(writing.model_with(heads)) for heads in (4, 2, 1)]
    assert max(sizes) / min(sizes) < 1.002
    widths = [writing.model_with(heads).stack.layers[0].attention.num_kv_heads for heads in (4, 2, 1)]
    assert widths == [4, 2, 1]


def test_text_there_and_back():
    text = "def f(x):\n    return ~x"
    tokens = writing.encode(text)
    assert tokens.shape == (1, len(text)) and writing.decode(tokens[0]) == text


@pytest.mark.usefixtures("unchecked")
def test_unknown_characters_are_refused():
    with pytest.raises(ValueError, match=r"text must consist of SYMBOLS, got \['é'\]"):
        writing.encode("é")


def test_repeated_counts_pieces_that_came_before():
    assert writing.repeated("abcdefgh", 3) == 0
    assert writing.repeated("aaaaaaaa", 3) == pytest.approx(5 / 6)
    assert writing.repeated("abcabc", 3) == pytest.approx(1 / 4)


def test_a_model_that_knows_nothing_loses_log_of_the_vocabulary():
    model = writing.model_with(2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    piece = documentation().test[:1000]
    assert writing.nats(model, piece) == pytest.approx(math.log(len(SYMBOLS)), rel=1e-5)


def test_a_trial_learns_and_says_what_it_took():
    result = writing.trial(1, 0, steps=15, learning_rate=0.01, judged_on="validation")
    assert result["nats"] < 4.5 and result["bytes"] == 2 * 2 * 1 * 16 * 4
    assert result["parameters"] == count_parameters(result["model"]) and not result["model"].training
