from itertools import repeat

import pytest
import torch
from torch import nn

from attention_course.beyond.vision import Captioner
from attention_course.lab.data import scenes
from attention_course.lab.data.digits import digits
from attention_course.lab.experiments import captions, vision
from attention_course.lab.measure.numbers import count_parameters
from attention_course.lab.train.loop import train


def test_what_is_compared_is_of_one_size():
    for models in (
        [vision.reader(kind) for kind in ("patches", "pixels", "filters")],
        [make() for make in vision.ANSWERERS.values()],
    ):
        sizes = [count_parameters(model) for model in models]
        assert max(sizes) <= 1.02 * min(sizes), sizes


def test_disorder_moves_the_pixels_of_all_images_alike():
    data = digits(0)
    moved = vision.in_disorder(data, seed=0)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    for before, after in zip(data, moved, strict=True):
        assert torch.equal(after.digit, before.digit)
        assert torch.equal(after.pixels.flatten(1), before.pixels.flatten(1)[:, order])


def test_an_epoch_brings_each_image_once():
    images = digits(0).validation
    stream = vision.batches(images, 70, seed=0)
    epoch = torch.cat([next(stream).pixels for _ in range(5)])  # 4 × 70 + 20 = 300
    assert len(epoch) == 300
    assert torch.equal(epoch.flatten(1).sum(1).sort().values, images.pixels.flatten(1).sum(1).sort().values)


def test_what_a_reading_says():
    found = vision.reading("patches", 0, images=100, steps=2)
    assert set(found) == {"validation", "test", "distance", "parameters", "seconds"}
    assert found["distance"].shape == (2, 4)
    assert ((found["distance"] > 1) & (found["distance"] < 6)).all()
    # Thirty steps on 300 images: a guess would be right one time in ten.
    assert vision.reading("pixels", 0, images=300, disorder=True, steps=30)["test"] > 0.25


class Knows(nn.Module):
    """Answers with the digit that it is told stands there, whatever the picture."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def forward(self, pixels, question=None):
        return nn.functional.one_hot(self.answers, 10).float()


def test_shares_that_are_right():
    images = digits(0).test
    assert vision.read_right(Knows(images.digit), images) == 1
    wrong = images.digit.clone()
    wrong[:100] = (wrong[:100] + 1) % 10
    assert vision.read_right(Knows(wrong), images) == 0.75
    batch = next(vision.questions(images, 40, 0))
    assert vision.answered_right(Knows(batch.answer), batch) == 1
    assert vision.answered_right(Knows(batch.question), batch) == 0  # no digit stands beside itself


def test_what_answering_says():
    found = vision.answering("side by side", 0, steps=2)
    assert set(found) == {"validation", "test", "parameters", "seconds"}


@pytest.mark.parametrize("kind", ["two layers", "side by side"])
def test_answers_to_a_few_scenes_can_be_learned(kind):
    model, batch = vision.ANSWERERS[kind](), next(vision.questions(digits(0).train, 16, 0))
    history = train(model, repeat(batch), vision.answering_loss, steps=12, learning_rate=0.01, warmup=1)
    assert history.losses[-1] < 0.75 * history.losses[0]


def test_kinds_that_there_are_not_are_refused(unchecked):
    with pytest.raises(ValueError, match='kind must be "two layers" or "one layer" or "side by side", got'):
        vision.answering("no layer", 0)
    with pytest.raises(ValueError, match='kind must be "patches" or "pixels" or "filters", got'):
        vision.reader("words")


def test_the_answer_depends_on_the_question():
    model, batch = vision.AskedTransformer(1, 8), next(vision.questions(digits(0).test, 4, 0))
    same = model(batch.pixels, batch.question)
    assert not torch.allclose(same, model(batch.pixels, (batch.question + 1) % 10))


def test_previous_words_begin_with_the_start():
    caption = torch.tensor([[3, scenes.ABOVE, 7, scenes.STOP, scenes.STOP]])
    assert captions.previous(caption).tolist() == [[scenes.START, 3, scenes.ABOVE, 7, scenes.STOP]]


def test_pointing_counts_the_words_that_mean_a_cell():
    batch = next(captions.batches(digits(0).test, 30, 0))
    weights = nn.functional.one_hot(batch.cell.clamp_min(0), scenes.CELLS).float()
    assert captions.points(weights, batch) == 1
    assert captions.points(weights.flip(-1), batch) == 0  # 12 cells: none is opposite itself
    first = torch.zeros_like(batch.cell, dtype=torch.bool)
    first[:, 0] = True
    half = weights.clone()
    half[:, 1:] = half[:, 1:].flip(-1)
    assert captions.points(half, batch, asked=first) == 1
    assert captions.points(half, batch) == 0.5


def test_a_caption_can_be_learned():
    model, batch = captions.captioner(), next(captions.batches(digits(0).train, 16, 0))
    history = train(model, repeat(batch), captions.loss, steps=12, learning_rate=0.01, warmup=1)
    assert history.losses[-1] < 0.75 * history.losses[0]


class Writes(Captioner):
    """Writes the words and looks at the cells that it is handed."""

    def __init__(self, words, cell):
        nn.Module.__init__(self)
        self.given, self.cell = words, cell

    def write(self, pixels, start, length):
        weights = nn.functional.one_hot(self.cell.clamp_min(0), scenes.CELLS).float()
        weights = weights * (self.cell != scenes.NONE)[..., None]  # a tie points nowhere
        return self.given, weights[:, None]


def test_captions_are_judged():
    batch = next(captions.batches(digits(0).test, 40, 0))
    assert captions.judged(Writes(batch.caption, batch.cell), batch) == {
        "caption": 1, "relation": 1, "word": 1, "pointing": 1, "late": 0,
    }  # fmt: skip
    words, cell = batch.caption.clone(), batch.cell.clone()
    words[:10, 1] = scenes.STOP  # these ten fall out of the last three shares ...
    cell[:10, 0] = (cell[:10, 0] + 1) % scenes.CELLS
    words[10:40, 0] = (words[10:40, 0] + 1) % 10  # ... and of the others one digit in two is wrong
    found = captions.judged(Writes(words, cell), batch)
    assert found == {"caption": 0, "relation": 0.75, "word": 0.5, "pointing": 1, "late": 0}
    # Where the next step's weights are shown, "late" finds them.
    early = captions.judged(Writes(batch.caption, batch.cell.roll(1, 1)), batch)
    assert early["late"] == 1 and early["pointing"] < 1


def test_what_a_captioner_hands_back():
    found = captions.trial(0, steps=2, held_out=20)
    assert set(found) == {"validation", "test", "scenes", "model", "parameters", "seconds"}
    for name in ("validation", "test"):
        assert set(found[name]) == {"caption", "relation", "word", "pointing", "late"}
    described = captions.describe(found["model"], found["scenes"].pixels)
    assert described.words.shape == (20, 5)
    torch.testing.assert_close(described.weights.sum(-1), torch.ones(20, 5))
