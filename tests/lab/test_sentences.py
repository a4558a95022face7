from collections import Counter

import pytest

from attention_course.lab.data import sentences

GENERATED = (sentences.determiners, sentences.subjects, sentences.pronouns)


@pytest.mark.parametrize("write", GENERATED)
def test_every_distance_occurs_equally_often_in_both_halves(write):
    drawn = write(384, 3)
    for half in (drawn[0::2], drawn[1::2]):
        distances = Counter(sentence.target - sentence.source for sentence in half)
        assert len(set(distances.values())) == 1
        assert len(distances) == {"determiners": 4, "subjects": 4, "pronouns": 6}[write.__name__]


@pytest.mark.parametrize("write", GENERATED)
def test_the_halves_share_no_noun_adjective_or_verb(write):
    drawn = write(400, 0)
    open_words = {
        *sentences.NOUNS,
        *sentences.ADJECTIVES,
        *sentences.VERBS,
        *(person for pair in sentences.PEOPLE for person in pair),
    }
    even, odd = ({word for s in half for word in s.words} & open_words for half in (drawn[0::2], drawn[1::2]))
    assert even and odd and not even & odd


@pytest.mark.parametrize("write", GENERATED)
def test_seeds_draw_and_repeat(write):
    assert write(50, 1) == write(50, 1) != write(50, 2)
    assert len(write(1, 0)) == 1


def test_a_determiner_asks_for_the_next_noun():
    for words, source, target, nouns in sentences.determiners(100, 0):
        assert words[source] in sentences.DETERMINERS and target in nouns
        assert next(n for n in nouns if n > source) == target
        assert all(word in sentences.ADJECTIVES for word in words[source + 1 : target])
        assert all(words[n] in sentences.NOUNS for n in nouns) and len(nouns) == 3


def test_a_verb_asks_across_another_noun_and_its_subject_is_first_half_of_the_time():
    drawn = sentences.subjects(384, 0)
    for words, source, target, nouns in drawn:
        assert words[source] in sentences.VERBS and words[target] in sentences.NOUNS
        assert len([n for n in nouns if target < n < source]) == 1
        assert words[source + 1 :] == ("the", words[nouns[-1]])
    assert sum(s.nouns[0] == s.target for s in drawn) == 192


def test_a_pronoun_means_the_only_one_it_can():
    men, women = (set(people) for people in zip(*sentences.PEOPLE, strict=True))
    drawn = sentences.pronouns(480, 0)
    for words, source, target, nouns in drawn:
        fitting = women if words[source] == "she" else men
        assert words[target] in fitting
        assert [n for n in nouns if words[n] in men | women and words[n] not in fitting] != []
        assert sum(word in fitting for word in words) == 1
    assert Counter(s.words[s.source] for s in drawn) == {"he": 240, "she": 240}
    assert sum(s.target == s.nouns[0] for s in drawn) == 240


@pytest.mark.parametrize("write", GENERATED)
def test_no_place_of_the_sentence_is_right_more_often_than_one_time_in_four(write):
    places = Counter(sentence.target for sentence in write(480, 0))
    assert max(places.values()) <= 0.26 * 480


def test_without_an_opening_the_second_word_is_right_half_of_the_time():
    drawn = sentences.pronouns(480, 0, opened=False)
    assert sum(sentence.target == 1 for sentence in drawn) == 240


@pytest.mark.parametrize("write", GENERATED)
def test_shuffling_keeps_the_words_and_who_is_who(write):
    drawn = write(60, 0)
    mixed = sentences.shuffled(drawn, 1)
    assert mixed == sentences.shuffled(drawn, 1) != drawn
    for before, after in zip(drawn, mixed, strict=True):
        assert sorted(before.words) == sorted(after.words)
        assert before.words[before.source] == after.words[after.source]
        assert before.words[before.target] == after.words[after.target]
        assert sorted(before.words[n] for n in before.nouns) == sorted(after.words[n] for n in after.nouns)


def test_running_text_is_whole_sentences_of_prose():
    drawn = sentences.running_text(300, 0)
    assert drawn == sentences.running_text(300, 0) != sentences.running_text(300, 1)
    assert len(set(drawn)) == 300
    for sentence in drawn:
        assert 8 <= len(sentence.split()) <= 40
        assert sentence[0].isupper() and sentence.endswith(".") and "\n" not in sentence
        assert not set(sentence) & set("=*[]{}<>_\\|`")


def test_running_text_can_be_kept_short():
    assert max(len(s.split()) for s in sentences.running_text(50, 0, longest=15)) <= 15


@pytest.mark.usefixtures("unchecked")
def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="number must be at least 1, got 0"):
        sentences.determiners(0, 0)
    with pytest.raises(ValueError, match=r"number must be at most the \d+ sentences there are, got 100000"):
        sentences.running_text(100_000, 0)
