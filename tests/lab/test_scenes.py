import pytest
import torch

from attention_course.beyond.vision import patches
from attention_course.lab.data import scenes
from attention_course.lab.data.digits import Images

# An image of digit d is a plain surface of brightness (d + 1) / 10: a scene says what it was made of.
PLAIN = Images(((torch.arange(20) % 10 + 1) / 10)[:, None, None].expand(20, 8, 8), torch.arange(20) % 10)


def on_the_grid(pixels):
    cells = patches(pixels, 8)  # [n, 12, 64]
    assert torch.equal(cells.amin(-1), cells.amax(-1))
    return (cells[..., 0] * 10).round().long() - 1  # the digit, or -1 in the dark


def test_captions_say_what_is_there():
    batch = scenes.captioned(PLAIN, 200, torch.Generator().manual_seed(0))
    grids = on_the_grid(batch.pixels)
    beside = 0
    for grid, caption, cell in zip(grids, batch.caption.tolist(), batch.cell.tolist(), strict=True):
        first, second = (grid != scenes.NONE).nonzero().flatten().tolist()  # row by row
        if first // scenes.COLUMNS == second // scenes.COLUMNS:
            beside += 1
            expected = [grid[first], scenes.LEFT, scenes.OF, grid[second], scenes.STOP]
            assert cell == [first, -1, -1, second, -1]
        else:
            assert first % scenes.COLUMNS == second % scenes.COLUMNS
            expected = [grid[first], scenes.ABOVE, grid[second], scenes.STOP, scenes.STOP]
            assert cell == [first, -1, second, -1, -1]
        assert caption == [int(word) for word in expected]
    assert 70 < beside < 130


@pytest.mark.parametrize("digits", [2, 4, 10])
def test_questions_have_the_answer_on_their_left(digits):
    batch = scenes.asked(PLAIN, 200, torch.Generator().manual_seed(0), digits=digits)
    for grid, question, answer in zip(on_the_grid(batch.pixels), batch.question, batch.answer, strict=True):
        there = grid[grid != scenes.NONE].tolist()
        assert len(there) == len(set(there)) == digits
        (place,) = (grid == question).nonzero().flatten().tolist()
        assert place % scenes.COLUMNS > 0
        assert grid[place - 1] == answer
    assert batch.question.unique().numel() == batch.answer.unique().numel() == 10


def test_scenes_follow_their_seed_and_use_every_image():
    draws = [scenes.captioned(PLAIN, 50, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(draws[0].pixels, draws[1].pixels)
    assert not torch.equal(draws[0].pixels, draws[2].pixels)
    marked = Images(torch.arange(1, 21.0)[:, None, None].expand(20, 8, 8), PLAIN.digit)
    seen = scenes.captioned(marked, 500, torch.Generator().manual_seed(0)).pixels.unique()
    assert seen.tolist() == [float(number) for number in range(21)]


@pytest.mark.parametrize("digits", [1, 11])
def test_scenes_that_cannot_be_are_refused(digits):
    with pytest.raises(ValueError, match="digits must lie between 2 and 10, got"):
        scenes.asked(PLAIN, 1, torch.Generator(), digits=digits)


def test_words_end_at_the_full_stop():
    assert scenes.words([3, scenes.LEFT, scenes.OF, 7, scenes.STOP]) == ["three", "left", "of", "seven"]
    assert scenes.words(torch.tensor([3, scenes.ABOVE, 7, scenes.STOP, 4])) == ["three", "above", "seven"]
    assert scenes.words([1, 2]) == ["one", "two"]


def test_ruling_out_the_last_column_answers_more_than_four_in_ten():
    """What chapter 14 calls no relation: whoever sees columns knows that no answer stands in the last one."""
    batch = scenes.asked(PLAIN, 2000, torch.Generator().manual_seed(0))
    grids = on_the_grid(batch.pixels)
    column = torch.arange(scenes.CELLS) % scenes.COLUMNS
    left = (grids != scenes.NONE) & (grids != batch.question[:, None]) & (column < scenes.COLUMNS - 1)
    assert (left & (grids == batch.answer[:, None])).any(1).all()
    assert 0.4 < (1 / left.sum(1)).mean() < 0.48
