"""Wrong answers that were handed in: all are rejected, and told for what they are. Right ones pass."""

import math

import pytest
import torch
import torch.nn.functional as F

from attention_course.checks import find_exercise
from attention_course.checks.engine.judge import judge_function
from attention_course.checks.masks.shared import keys, later

LEAKS = (-10.0, -15.0, -20.0, -25.0, -50.0, -100.0)


def _padded(scores, lengths):
    return torch.arange(scores.shape[-1]) >= lengths[:, None]


def _causal(scores):
    return later(scores) > 0


def _decoder_hidden(scores, real):
    return (later(scores) > 0) | ~keys(real)


def _cached_hidden(query, past_key):
    T, past = query.shape[-2], past_key.shape[-2]
    return ~torch.ones(T, past + T, dtype=torch.bool).tril(past)


def _strided_hidden(scores, stride):
    places = torch.arange(scores.shape[-1])
    behind = places[:, None] - places
    return (behind < 0) | (behind % stride != 0)


def _pair(weights, value):
    return weights @ value, weights


#: exercise -> an answer, but for what softmax does with (scores, hidden)
WITH_A_MASK = {
    "01_bottleneck.look_back": lambda weigh: (
        lambda scores, states, lengths: (
            (w := weigh(scores, _padded(scores, lengths))).unsqueeze(-2).matmul(states).squeeze(-2),
            w,
        )
    ),
    "02_score_functions.attentional": lambda weigh: (
        lambda decoder, encoder, lengths, weight: (
            torch.cat(
                ((w := weigh(s := decoder @ encoder.mT, _padded(s, lengths)[:, None])) @ encoder, decoder), -1
            )
            .matmul(weight)
            .tanh(),
            w,
        )
    ),
    "05_masks.causal_weights": lambda weigh: lambda scores: weigh(scores, _causal(scores)),
    "05_masks.padding_weights": lambda weigh: lambda scores, real: weigh(scores, ~keys(real)),
    "05_masks.decoder_attention": lambda weigh: (
        lambda query, key, value, real: _pair(
            weigh(s := query @ key.mT / query.shape[-1] ** 0.5, _decoder_hidden(s, real)).nan_to_num(), value
        )
    ),
    "07_transformer.cross_attention": lambda weigh: (
        lambda x, memory, x_real, memory_real, w_query, w_key, w_value: _pair(
            weigh(
                (x @ w_query) @ (memory @ w_key).mT / w_key.shape[-1] ** 0.5, ~memory_real.bool()[:, None, :]
            ),
            memory @ w_value,
        )
    ),
    "09_decoding.attend_cached": lambda weigh: (
        lambda query, key, value, past_key, past_value: _pair(
            weigh(
                query @ torch.cat((past_key, key), -2).mT / query.shape[-1] ** 0.5,
                _cached_hidden(query, past_key),
            ),
            torch.cat((past_value, value), -2),
        )
    ),
    "10_linear.strided_weights": lambda weigh: (
        lambda scores, stride: weigh(scores, _strided_hidden(scores, stride))
    ),
}


def by_infinity(scores, hidden):
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def renormalised(scores, hidden):
    weights = scores.softmax(-1).masked_fill(hidden, 0.0)
    return weights / weights.sum(-1, keepdim=True)


def without_maximum(scores, hidden):
    powers = scores.exp().masked_fill(hidden, 0.0)
    return powers / powers.sum(-1, keepdim=True)


def in_logarithms(scores, hidden):
    scores = scores.masked_fill(hidden, -torch.inf)
    return (scores - scores.logsumexp(-1, keepdim=True)).exp()


def smallest_number(scores, hidden):
    return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)


def as_hugging_face(scores, hidden):
    """In float32 and back, where the scores are float64."""
    scores = scores.masked_fill(hidden, -torch.inf)
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)


with_a_mask = pytest.mark.parametrize("name", WITH_A_MASK)
pytestmark = pytest.mark.usefixtures("unchecked")


def judged(name, weigh):
    return judge_function(find_exercise(name), WITH_A_MASK[name](weigh))


@with_a_mask
def test_minus_infinity_is_right(name):
    blind = name == "05_masks.decoder_attention"  # its rows of NaN are made 0, which cuts the gradient
    verdict = judged(name, by_infinity)
    assert verdict.passed or (blind and {one.stage for one in verdict.findings} == {"gradient"})


@with_a_mask
@pytest.mark.parametrize("leak", LEAKS)
def test_a_finite_number_added_to_hidden_scores_leaks(name, leak):
    verdict = judged(name, lambda scores, hidden: (scores + leak * hidden).softmax(-1))
    assert not verdict.passed
    assert verdict.mistake is not None


@with_a_mask
@pytest.mark.parametrize("leak", LEAKS)
def test_a_finite_number_in_place_of_hidden_scores_leaks(name, leak):
    verdict = judged(name, lambda scores, hidden: scores.masked_fill(hidden, leak).softmax(-1))
    assert not verdict.passed
    assert verdict.mistake is not None


@with_a_mask
@pytest.mark.parametrize("weigh", [renormalised, without_maximum])
def test_what_overflows_beside_large_scores_is_rejected(name, weigh):
    assert not judged(name, weigh).passed


@with_a_mask
def test_logarithms_are_right(name):
    if name != "05_masks.decoder_attention":  # it has rows that see nothing
        assert judged(name, in_logarithms).passed


@with_a_mask
def test_the_smallest_number_and_float32_pass_where_scores_are_those_of_models(name):
    """Chapters 1 and 5 ask for scores that no float32 tells apart, and rows that see nothing."""
    if name[:2] not in ("01", "05"):
        assert judged(name, smallest_number).passed
        verdict = judged(name, as_hugging_face)
        assert verdict.passed or verdict.mistake.name == "float64 computed in float32"


def _global_maximum(scores):
    finite = scores.masked_fill(scores == -torch.inf, torch.finfo(scores.dtype).min)
    powers = (scores - finite.max()).exp()
    return powers / powers.sum(-1, keepdim=True).clamp_min(1e-30)


def _unit(x):
    return (x / x.norm(dim=-1, keepdim=True)).nan_to_num()


def _by_group_norm(x, gain, shift):
    return F.group_norm(x.reshape(-1, x.shape[-1]), 1, gain, shift, 1e-5).view_as(x)


def _by_squares(x, gain, shift):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x * x).mean(-1, keepdim=True) - mean * mean + 1e-5).sqrt() * gain + shift


def _std_and_epsilon(x, gain, shift):
    return gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5) + shift


def _from_nn_linear(x, memory, w_query, w_key, w_value, w_output):
    def heads(tokens, weight):
        return (tokens @ weight.mT).unflatten(-1, (3, -1)).transpose(-2, -3)

    query, key, value = heads(x, w_query), heads(memory, w_key), heads(memory, w_value)
    weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
    return (weights @ value).transpose(-2, -3).flatten(-2) @ w_output.mT


def _mask_along_the_queries(decoder, encoder, lengths, weight):
    scores = decoder @ encoder.mT
    rows = torch.arange(scores.shape[-2]) < lengths[:, None]
    weights = scores.masked_fill(~rows[..., None], -torch.inf).softmax(-1)
    return torch.cat((weights @ encoder, decoder), dim=-1).matmul(weight).tanh(), weights


def _blind_rows_left_alone(query, key, value, real):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    seen = (later(scores) <= 0) & keys(real)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights @ value, weights


def _visible_as_numbers(last, query, window):
    held, visible = find_exercise("09_decoding.ring").reference(last, query, window)
    return held, visible.long()


def _a_list(scores, states, lengths):
    return list(find_exercise("01_bottleneck.look_back").reference(scores, states, lengths))


#: exercise, answer, and what the first finding or the mistake says
WRONG = (
    ("05_masks.safe_softmax", _global_maximum, ""),
    ("05_masks.safe_softmax", lambda scores: scores.softmax(-1).nan_to_num(), "NaN"),
    ("02_score_functions.cosine", lambda query, key: _unit(query) @ _unit(key).mT, "NaN"),
    ("07_transformer.layer_norm", _by_group_norm, "group_norm"),
    ("07_transformer.layer_norm", _by_squares, "a difference of large squares"),
    ("07_transformer.layer_norm", _std_and_epsilon, "unbiased, and ε outside the root"),
    ("04_multi_head.multi_head_attention", _from_nn_linear, ""),
    ("02_score_functions.attentional", _mask_along_the_queries, "mask along the queries"),
    ("05_masks.decoder_attention", _blind_rows_left_alone, "NaN rows"),
    ("09_decoding.ring", _visible_as_numbers, "visible has dtype int64; expected bool."),
    ("01_bottleneck.look_back", _a_list, "a list of 2; expected a tuple of 2: return (context, weights)."),
)


@pytest.mark.parametrize(("name", "answer", "words"), WRONG, ids=lambda one: getattr(one, "__name__", None))
def test_wrong_answers_are_rejected(name, answer, words):
    verdict = judge_function(find_exercise(name), answer)
    assert not verdict.passed
    said = verdict.findings[0].text + (verdict.mistake.name if verdict.mistake else "")
    assert words in said
    assert "part of the path is cut" not in said
