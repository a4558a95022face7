"""Chapter 13's experiment, on a small encoder whose heads are made by hand or by chance."""

from types import SimpleNamespace

import pytest
import torch

from attention_course.inside import probes
from attention_course.inside.pretrained import BertEncoder, Pretrained
from attention_course.lab.data import sentences
from attention_course.lab.experiments import probing
from attention_course.positions import Learned
from attention_course.transformer import Embedding, Encoder, LayerConfig

LAYERS, HEADS = 2, 4


class Words:
    """A tokenizer of whole words, numbered as they come."""

    def __init__(self):
        self.numbers = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2}

    def encode_batch(self, texts):
        return [self._encoded(["[CLS]", *text.split(), "[SEP]"]) for text in texts]

    def _encoded(self, tokens):
        ids = [self.numbers.setdefault(token, len(self.numbers)) for token in tokens]
        return SimpleNamespace(ids=ids, tokens=tokens)


@pytest.fixture
def small():
    torch.manual_seed(0)
    config = LayerConfig(d_model=16, num_heads=HEADS, d_ff=32, norm="post")
    embedding = Embedding(2000, 16, Learned(64, 16), num_segments=2, norm_layer=torch.nn.LayerNorm)
    model = BertEncoder(embedding, Encoder(LAYERS, config)).eval()
    return Pretrained(model, Words(), {"max_position_embeddings": 64})


def test_an_untrained_model_has_first_weights_and_leaves_the_trained_one_alone(small):
    before = {name: p.clone() for name, p in small.model.named_parameters()}
    first, again = (probing.untrained(small, seed) for seed in (1, 1))
    for name, parameter in first.model.named_parameters():
        if parameter.dim() > 1:
            assert not torch.equal(parameter, before[name])
            assert parameter.std().item() == pytest.approx(0.02, rel=0.3)
        else:
            assert (parameter == (1.0 if name.endswith("norm.weight") else 0.0)).all()
        assert torch.equal(parameter, dict(again.model.named_parameters())[name])
        assert torch.equal(dict(small.model.named_parameters())[name], before[name])


def planted(drawn, layer, head, at):
    """Heads of noise, and one whose largest weight lies on each sentence's word ``at(sentence)``."""
    width = max(len(s.words) for s in drawn)
    given = torch.rand(LAYERS, HEADS, len(drawn), width)
    for b, sentence in enumerate(drawn):
        given[layer, head, b, at(sentence)] = 2
    words, nouns = (torch.zeros(len(drawn), width, dtype=torch.bool) for _ in range(2))
    for b, sentence in enumerate(drawn):
        words[b, : len(sentence.words)] = True
        nouns[b, list(sentence.nouns)] = True
    source, target = (torch.tensor([getattr(s, name) for s in drawn]) for name in ("source", "target"))
    return probing.Asked(given, source, target, words, nouns)


def test_a_planted_head_is_found_and_its_controls_are_those_of_the_same_head():
    drawn = sentences.subjects(128, 0)
    mixed = sentences.shuffled(drawn, 1)
    found = probing.relation(
        planted(drawn, 1, 2, lambda s: s.target),
        planted(mixed, 0, 3, lambda s: s.target),  # another head is right when shuffled
        planted(drawn, 0, 0, lambda s: s.source),  # which is never allowed
    )
    assert found.probe.name == "2.3" and found.probe.reported == found.scores[1, 2] == 1
    assert found.shuffled < 0.4 and found.shuffled == pytest.approx(found.shuffled_scores[1, 2].item())
    assert found.shuffled_scores[0, 3] == 1 and found.untrained < 0.4
    assert set(found.by_distance) == {-7, -6, -5, -4} and set(found.by_distance.values()) == {1.0}
    assert found.places <= 0.35


def test_nouns_only_let_no_other_word_compete_and_the_best_place_counts_nouns():
    drawn = sentences.subjects(128, 0)
    # Half of the weight on the verb's neighbour, which is no noun; the subject comes second.
    asked = planted(drawn, 1, 2, lambda s: s.source + 1)
    for b, sentence in enumerate(drawn):
        asked.given[1, 2, b, sentence.target] = 1.5
    everything = probing.relation(asked, asked, asked)
    nouns = probing.relation(asked, asked, asked, nouns_only=True)
    assert everything.scores[1, 2] == 0 and nouns.scores[1, 2] == 1
    assert nouns.places == pytest.approx(0.5, abs=0.1)  # "always the first noun"
    counts = [len(s.nouns) for s in drawn[1::2]]
    assert nouns.guess == pytest.approx(sum(1 / n for n in counts) / len(counts))


def test_the_best_place_is_a_step_or_a_place_whichever_is_better():
    drawn = sentences.pronouns(96, 0, opened=False)
    asked = planted(drawn, 0, 0, lambda s: s.target)
    assert probing.relation(asked, asked, asked).places == 0.5  # the second word; a step finds a sixth


def test_asking_goes_from_the_asking_word_to_words(small):
    drawn = sentences.determiners(6, 0)
    asked = probing.ask(small, drawn)
    seen, batch = probing.weights(small, [s.text for s in drawn])
    assert seen.shape[:3] == (LAYERS, 6, HEADS)
    for b, s in enumerate(drawn):
        row = seen[:, b, :, s.source + 1, 1 : len(s.words) + 1]  # [CLS] stands in front
        torch.testing.assert_close(asked.given[:, :, b, : len(s.words)], row)
        assert asked.words[b].sum() == len(s.words) and batch.lengths[b] == len(s.words) + 2
        assert asked.nouns[b].nonzero().flatten().tolist() == list(s.nouns)


def test_patterns_have_a_head_and_a_baseline_each(small):
    shares, counts = probing.patterns(small, 6, 0)
    assert set(shares) - set(counts) == {"first", "separator"}
    for found in (*shares.values(), *counts.values()):
        assert found.scores.shape == (LAYERS, HEADS) and 0 < found.uniform < 0.5


def test_one_at_a_time_is_what_closing_one_gate_does(small):
    batch = small.tokens(["one two three", "four five six seven"])
    full, alone = probing.embedded(small, batch), probing.leave_one_out(small, batch)
    for layer in range(LAYERS):
        for head in range(HEADS):
            gates = probes.gates_without([(layer, head)], LAYERS, HEADS)
            kept = (probing.embedded(small, batch, gates) * full).sum(-1).mean()
            assert alone[layer, head].item() == pytest.approx(kept.item(), abs=1e-5)
    assert alone.min() < 0.9999


def test_the_gradient_sees_a_head_that_says_nothing(small):
    attention = small.model.stack.layers[0].attention
    with torch.no_grad():
        attention.output_projection.weight[:, 4:8] = 0  # head 2 of layer 1 reaches nobody
    importance = probing.gradient_importance(small, small.tokens(["a b c", "d e f g", "h i"]))
    assert importance[0, 1] == 0 and importance.flatten().sort().values[1] > 0
    assert probes.order(importance)[0] == (0, 1)


def test_a_cosine_to_itself_has_no_slope_and_the_contrastive_loss_has(small):
    batch = small.tokens(["a b c", "d e f g", "h i"])
    full = probing.embedded(small, batch)
    vectors = full.clone().requires_grad_()
    torch.nn.functional.cosine_similarity(vectors, full).sum().backward()
    assert vectors.grad.abs().max() < 1e-6
    vectors.grad = None
    probing.contrastive(vectors, full).sum().backward()
    assert vectors.grad.abs().max() > 0.1


def test_an_ablation_starts_at_1_ends_where_all_orders_meet_and_repeats(small):
    texts = sentences.running_text(12, 0, longest=12)
    once, again = (
        probing.ablation(
            small, to_order=texts[:4], to_report=texts[4:], orders=2, counts=(0, 4, LAYERS * HEADS)
        )
        for _ in range(2)
    )
    curves = (once.by_gradient, once.one_by_one, *once.random)
    assert len(once.random) == 2 and once.random == again.random
    for curve in curves:
        assert curve[0] == 1 > 0.999 > curve[-1] == curves[0][-1]
    everything = probing._kept(
        small,
        small.tokens(texts[4:]),
        probing.embedded(small, small.tokens(texts[4:])),
        probes.order(once.alone),
    )
    assert curves[0][-1] == pytest.approx(everything, abs=1e-6)
    full = probing.embedded(small, small.tokens(texts[4:]))
    for curve, order in (
        (once.by_gradient, probes.order(once.importance)),
        (once.one_by_one, probes.order(-once.alone)),  # what is least missed goes first
    ):
        kept = probing._kept(small, small.tokens(texts[4:]), full, order[:4])
        assert curve[1] == pytest.approx(kept, abs=1e-6)
    assert once.alone.shape == once.importance.shape == (LAYERS, HEADS)
    assert -1 <= once.strangers < 1 and 0 <= once.retrieved <= 1
