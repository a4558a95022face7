import pytest
import torch

from attention_course.inside import probes

PIECES = [
    ["[CLS]", "the", "hedge", "##hog", "saw", "the", "cat", "[SEP]"],
    ["[CLS]", "she", "saw", "her", "[SEP]", "[PAD]", "[PAD]", "[PAD]"],
]
TOKENS = torch.tensor([[101, 5, 90, 91, 30, 5, 40, 102], [101, 7, 30, 8, 102, 0, 0, 0]])
LENGTHS = torch.tensor([8, 5])
WORDS = torch.tensor([[-1, 0, 1, 1, 2, 3, 4, -1], [-1, 0, 1, 2, -1, -1, -1, -1]])

POINTS = {  # for each pattern, who points to whom
    "previous": ([(2, 1), (3, 2), (4, 3), (5, 4), (6, 5)], [(2, 1), (3, 2)]),
    "next": ([(1, 2), (2, 3), (3, 4), (4, 5), (5, 6)], [(1, 2), (2, 3)]),
    "self": ([(i, i) for i in range(1, 7)], [(i, i) for i in range(1, 4)]),
    "first": ([(i, 0) for i in range(1, 7)], [(i, 0) for i in range(1, 4)]),
    "separator": ([(i, 7) for i in range(1, 7)], [(i, 4) for i in range(1, 4)]),
    "same word": ([(1, 5), (5, 1)], []),
    "rarest": ([(i, 3) for i in (1, 2, 4, 5, 6)], [(1, 2), (3, 2)]),
}


def drawn(layers=2, heads=3, B=2, T=8, lengths=LENGTHS):
    """Weights that give padding nothing."""
    scores = torch.randn(layers, B, heads, T, T)
    hidden = torch.arange(T) >= lengths[:, None]
    return scores.masked_fill(hidden[:, None, None, :], -torch.inf).softmax(-1)


@pytest.mark.parametrize("name", POINTS)
def test_every_pattern_points_where_its_name_says(name):
    looked = probes.patterns(TOKENS, LENGTHS)[name]
    expected = torch.zeros(2, 8, 8, dtype=torch.bool)
    for sentence, pairs in enumerate(POINTS[name]):
        for query, key in pairs:
            expected[sentence, query, key] = True
    assert torch.equal(looked, expected)


@pytest.mark.parametrize("name", POINTS)
def test_share_and_uniform_are_what_a_loop_sums_up(name):
    weights, sentences = drawn(), POINTS[name]
    looked = probes.patterns(TOKENS, LENGTHS)[name]
    got, even = probes.share(weights, looked), []
    kept = [b for b in range(2) if sentences[b]]
    assert got.shape == (2, 3, len(kept))
    for column, b in enumerate(kept):
        queries = {query for query, _ in sentences[b]}
        for layer in range(2):
            for head in range(3):
                total = sum(weights[layer, b, head, q, k].item() for q, k in sentences[b])
                assert got[layer, head, column].item() == pytest.approx(total / len(queries), abs=1e-6)
        even.append(len(sentences[b]) / len(queries) / LENGTHS[b].item())
    assert probes.uniform(looked, LENGTHS).item() == pytest.approx(sum(even) / len(even))


def test_a_planted_previous_token_head_is_found_and_no_other():
    weights = drawn(layers=2, heads=4, B=6, lengths=torch.full((6,), 8))
    weights[0, :, 1] = torch.eye(8).roll(1, 0)  # layer 1, head 2: row i looks at i − 1
    tokens = torch.randint(200, 300, (6, 8))
    lengths = torch.full((6,), 8)
    looked = probes.patterns(tokens, lengths)["previous"]
    for scores in (probes.share(weights, looked), probes.largest(weights, looked, lengths)):
        found = probes.best_head(scores)
        assert (found.layer, found.head, found.name) == (1, 2, "1.2")
        assert found.chosen == found.reported == found.low == found.high == 1.0
        assert scores.mean(-1).flatten().sort().values[-2] < 0.9
    rows_as_columns = probes.share(weights.mT, looked)
    assert rows_as_columns[0, 1].max() == 0  # it looks forward when a row is read as a column


def test_the_largest_weight_is_looked_for_among_ordinary_tokens_only():
    weights = torch.zeros(1, 2, 1, 8, 8)
    weights[..., 0] = 0.6  # [CLS] gets most
    weights[..., 2] = 0.3
    weights[..., 1] = 0.1
    looked = probes.patterns(TOKENS, LENGTHS)["previous"]
    # Sentence 1: only token 3 has token 2 in front of it, of 5 that ask; sentence 2: one of 2.
    assert probes.largest(weights, looked, LENGTHS).flatten().tolist() == pytest.approx([1 / 5, 1 / 2])


def test_even_weights_are_at_the_baseline():
    looked = probes.patterns(TOKENS, LENGTHS)["first"]
    even = (torch.arange(8) < LENGTHS[:, None]) / LENGTHS[:, None]
    score = probes.share(even[None, :, None, None, :].expand(1, 2, 1, 8, 8), looked).mean()
    assert probes.above(score, probes.uniform(looked, LENGTHS)).item() == pytest.approx(0, abs=1e-6)
    assert probes.above(1.0, 0.25) == 1 and probes.above(0.5, 0.25) == pytest.approx(1 / 3)


def test_pieces_belong_to_their_words():
    assert torch.equal(probes.words_of(PIECES), WORDS)
    short = [PIECES[0], PIECES[1][:5]]  # a row without its padding
    assert torch.equal(probes.words_of(short), WORDS)


def test_a_word_asks_with_its_first_piece_and_gets_the_sum_over_its_pieces():
    weights, source = drawn(), torch.tensor([1, 2])
    given = probes.from_word(weights, WORDS, source)
    assert given.shape == (2, 3, 2, 5)
    for layer in range(2):
        for head in range(3):
            for b, row in ((0, 2), (1, 3)):  # "hedge" is token 2, "her" token 3
                for word in range(5):
                    pieces = (WORDS[b] == word).nonzero().flatten().tolist()
                    total = sum(weights[layer, b, head, row, piece].item() for piece in pieces)
                    assert given[layer, head, b, word].item() == pytest.approx(total, abs=1e-6)


def test_a_hit_is_the_largest_among_candidates_and_never_the_asker():
    given = torch.tensor([[0.5, 0.1, 0.3, 0.1]]).expand(1, 1, 1, 4)
    source, everything = torch.tensor([0]), torch.ones(1, 4, dtype=torch.bool)
    assert probes.hits(given, source, torch.tensor([2]), everything).item()
    assert not probes.hits(given, source, torch.tensor([1]), everything).item()
    allowed = torch.tensor([[True, True, False, False]])
    assert probes.hits(given, source, torch.tensor([1]), allowed).item()


def test_the_best_offset_is_the_commonest_where_it_was_chosen():
    source, target = torch.tensor([5, 5, 5, 5, 5]), torch.tensor([6, 7, 6, 7, 7])
    assert probes.best_offset(source, target, [0, 2]).tolist() == [True, False, True, False, False]
    assert probes.best_offset(source, target, [1, 3, 4]).tolist() == [False, True, False, True, True]


def test_a_head_is_chosen_on_even_sentences_and_reported_on_odd_ones():
    even, odd = probes.halves(5)
    assert (even, odd) == ([0, 2, 4], [1, 3])
    right = torch.zeros(1, 2, 40)
    right[0, 0, 0::2] = 1  # right where it is chosen, wrong elsewhere
    right[0, 1, 1::2] = 1
    found = probes.best_head(right)
    assert (found.name, found.chosen, found.reported, found.low, found.high) == ("1.1", 1, 0, 0, 0)


def test_by_luck_the_best_of_many_heads_looks_good_only_where_it_was_chosen():
    lucky = [probes.best_head(torch.rand(6, 12, 100) < 0.3, seed=seed) for seed in range(20)]
    assert sum(found.chosen for found in lucky) / 20 > 0.4
    assert abs(sum(found.reported for found in lucky) / 20 - 0.3) < 0.06


def test_the_interval_holds_the_mean_19_times_in_20():
    held = 0
    for seed in range(200):
        values = (torch.rand(80) < 0.3).float()
        low, high = probes.interval(values, seed=seed)
        held += low <= 0.3 <= high
    assert 176 <= held <= 199  # 190 expected, standard deviation 3
    assert probes.interval(values, seed=1) == probes.interval(values, seed=1)


def test_the_least_important_heads_come_first_and_their_gates_close():
    order = probes.order(torch.tensor([[0.3, 0.1, 0.2], [0.0, 0.5, 0.4]]))
    assert order == [(1, 0), (0, 1), (0, 2), (0, 0), (1, 2), (1, 1)]
    gates = probes.gates_without(order[:2], 2, 3)
    assert gates.tolist() == [[1, 0, 1], [0, 1, 1]]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: probes.patterns(TOKENS, torch.tensor([8, 9])), "lengths must lie between 2 and T=8"),
        (lambda: probes.patterns(TOKENS, torch.tensor([8, 1])), "lengths must lie between 2 and T=8"),
        (
            lambda: probes.share(drawn(), torch.zeros(2, 8, 8, dtype=torch.bool)),
            "looked must have a key for at least one query, got none",
        ),
        (
            lambda: probes.from_word(drawn(), WORDS, torch.tensor([0, 3])),
            "source must be a word of its sentence, got 3 for sentence 1",
        ),
        (lambda: probes.best_head(torch.ones(1, 1, 1)), "at least two sentences to halve, got 1"),
        (lambda: probes.interval(torch.ones(0)), "values must hold at least one, got none"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
