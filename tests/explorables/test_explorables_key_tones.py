"""Key tones in the page: sound, spectrogram and alignment are what was handed in, on one axis of time."""

import base64
import io
import re
import wave

import numpy as np
import pytest
import torch
from browser import figure

from attention_course.explorables import Clip, key_tones
from attention_course.explorables.key_tones import compare

RATE, FRAMES, BANDS, STATES = 8000, 20, 6, 10
PER_STATE = 2.0


def clip(decibels, said, right, seed=0, **changed):
    """Half a second of noise, and weights that lie on states 2, 4, … for keys 1, 2, …"""
    generator = torch.Generator().manual_seed(seed)
    keys = len(said)
    scores = torch.rand(keys, STATES, generator=generator)
    scores[range(keys), [2 * k + 1 for k in range(keys)]] += 4
    whole = Clip(
        decibels,
        torch.rand(RATE // 2, generator=generator) * 1.8 - 0.9,
        RATE,
        torch.randn(FRAMES, BANDS, generator=generator),
        scores.softmax(1),
        PER_STATE,
        said,
        right,
    )
    return whole._replace(**changed)


CLIPS = (
    clip(20, list("1A#"), list("1A#")),
    clip(0, list("1*#5"), list("1A#"), 1),
    clip(-5.5, list("A"), list("1A#"), 2),
)


@pytest.mark.parametrize(
    ("clips", "words"),
    [
        ([], "at least one Clip, got none"),
        ([clip(0, ["1"], ["1"], wave=torch.ones(2, 9))], "wave of clip 1 must be [samples]"),
        ([clip(0, ["1"], ["1"], wave=[0.0, 1.5])], "wave of clip 1 must lie between -1 and 1, got 1.5"),
        ([clip(0, ["1"], ["1"], wave=torch.zeros(20_001))], "at most 20000 samples"),
        ([clip(0, ["1"], ["1"], spectrogram=torch.ones(9))], "spectrogram of clip 1 must be [frames, bands]"),
        ([CLIPS[0], CLIPS[1]._replace(said=["1"])], "clip 2 must hold one row for each of the 1 "),
        ([clip(0, ["1"], ["1"], weights=torch.full((1, 10), 0.05))], "must sum to 1, got 0.500"),
        ([clip(0, ["1"], ["1"], frames_per_state=0)], "frames_per_state of clip 1 must be above 0, got 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(unchecked, clips, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        key_tones(clips)


@pytest.mark.parametrize(
    ("said", "right", "pairs"),
    [
        ("123", "123", "11 22 33"),
        ("193", "123", "11 92 33"),
        ("13", "123", "11 -2 33"),
        ("1233", "123", "11 22 3- 33"),
        ("", "12", "-1 -2"),
        ("2345", "1234", "-1 22 33 44 5-"),
    ],
)
def test_said_beside_right_with_the_fewest_differences(said, right, pairs):
    got = compare(said, right)
    assert " ".join((a or "-") + (b or "-") for a, b in got) in (pairs, pairs.replace("3- 33", "33 3-"))


def pick(within, number):
    within.get_by_role("slider").fill(str(number))


def pixels(canvas):
    read = """e => [e.width, e.height, ...e.getContext("2d").getImageData(0, 0, e.width, e.height).data]"""
    width, height, *numbers = canvas.evaluate(read)
    return np.reshape(numbers, (height, width, 4))[..., :3]


def test_every_clip_its_sound_its_pictures_and_its_words(page_with):
    page = page_with(key_tones(CLIPS))
    within = figure(page)
    spectrograms = [c.spectrogram.numpy() for c in CLIPS]
    low = min(np.quantile(s, 0.05) for s in spectrograms)
    high = max(s.max() for s in spectrograms)
    paper, ink, weights, deep = (
        np.array(c) for c in [(255, 255, 255), (31, 35, 40), (204, 121, 167), (107, 40, 80)]
    )
    for number, given in enumerate(CLIPS):
        pick(within, number)
        share = ((spectrograms[number] - low) / (high - low)).clip(0, 1).T[::-1, :, None]  # low tones below
        got = pixels(within.locator(".sound canvas"))
        np.testing.assert_allclose(got, paper + share * (ink - paper), atol=2)
        for k, row in enumerate(given.weights.numpy()):
            stops = np.transpose([paper, weights, deep])
            expected = np.stack([np.interp(row, [0, 0.5, 1], stop) for stop in stops], axis=-1)
            np.testing.assert_allclose(pixels(within.locator(".rows canvas").nth(k))[0], expected, atol=2)
        assert within.locator(".rows .name").all_text_contents() == given.said
        assert within.get_by_role("slider").get_attribute(
            "aria-valuetext"
        ) == f"{given.decibels}\u00a0dB".replace("-", "−")
        pairs = compare(given.said, given.right)
        for line, which in (("said", 0), ("right", 1)):
            assert within.locator(f"tr.{line} td").all_text_contents() == [p[which] or "–" for p in pairs]
        wrong = within.locator("tr.said td").evaluate_all(
            "all => all.map(e => e.classList.contains('wrong'))"
        )
        assert wrong == [a != b for a, b in pairs]
        verdict = within.locator(".verdict").text_content()
        assert verdict.startswith("✗ 2 of" if any(wrong) else "✓ Every key")


def test_the_sound_is_the_wave(page_with):
    html = key_tones(CLIPS[:1]).html
    encoded = re.search(r'"wave": "([^"]+)"', html)[1]
    with wave.open(io.BytesIO(base64.b64decode(encoded))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 1)
        samples = np.frombuffer(file.readframes(RATE), np.uint8)
    np.testing.assert_allclose((samples - 128.0) / 127, CLIPS[0].wave, atol=1 / 254 + 1e-6)


def test_play_moves_the_line_until_the_end_or_a_stop(page_with):
    page = page_with(key_tones(CLIPS))
    within = figure(page)
    line = within.locator(".now")
    assert not line.is_visible()
    within.get_by_role("button", name="Play").click()
    line.wait_for(state="visible")
    page.wait_for_function(
        """() => parseFloat(document.querySelector(".ac-explorable").shadowRoot
        .querySelector(".now").style.left) > 20"""
    )
    within.get_by_role("button", name="Play").wait_for()  # half a second later
    assert not line.is_visible()
    within.get_by_role("button", name="Play").click()
    within.get_by_role("button", name="Stop").click()
    within.get_by_role("button", name="Play").wait_for()
    assert not line.is_visible()


def test_a_keys_part_is_framed_on_the_same_axis(page_with):
    page = page_with(key_tones([CLIPS[0]._replace(frames_per_state=1.5)]))  # states end before the frames do
    within = figure(page)
    whole = within.locator(".sound canvas").bounding_box()
    for k in range(3):
        within.locator(".rows label").nth(k).click()
        state = 2 * k + 1
        start, end = state * 1.5 / FRAMES, (state + 1) * 1.5 / FRAMES
        frame = within.locator(".frame").bounding_box()
        assert frame["x"] == pytest.approx(whole["x"] + start * whole["width"], abs=1)
        assert frame["width"] == pytest.approx((end - start) * whole["width"], abs=1)
        row = within.locator(".rows canvas").nth(k).bounding_box()
        assert row["x"] == pytest.approx(whole["x"], abs=1)
        assert row["width"] == pytest.approx(whole["width"] * STATES * 1.5 / FRAMES, abs=1)
        share = (CLIPS[0].weights[k, state] * 255).round() / 255
        assert within.locator(".sum").text_content().replace("\u00a0", " ") == (
            f"Key {k + 1}, {CLIPS[0].said[k]}, looks most at {start / 2:.2f} s to {end / 2:.2f} s: "
            f"{share:.2f} of its weight lies there."
        )


def test_neighbours_of_half_the_weight_belong_to_the_part(page_with):
    weights = torch.tensor([[0.0, 0.1, 0.2, 0.4, 0.3, 0, 0, 0, 0, 0]])
    within = figure(page_with(key_tones([clip(0, ["1"], ["1"], weights=weights)])))
    said = within.locator(".sum").text_content().replace("\u00a0", " ")
    assert said.startswith("Key 1, 1, looks most at 0.10 s to 0.25 s: 0.90")


def test_by_keyboard_and_by_finger(page_with):
    page = page_with(key_tones(CLIPS), width=390, has_touch=True)
    within = figure(page)
    for key in ("Tab", "Tab", "ArrowRight", "Tab", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert within.locator(".sum").text_content().startswith("Key 3, #")
    assert within.locator("[role=status]").text_content() == within.locator(".sum").text_content()
    within.locator(".rows label").nth(1).tap()
    assert within.locator(".sum").text_content().startswith("Key 2, *")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    assert within.locator(".sum").text_content().startswith("Key 1, A")  # there is no second key


@pytest.mark.parametrize(("theme", "width"), [("light", 1400), ("dark", 390), ("light", 320)])
def test_accessible_and_never_too_wide(page_with, theme, width):
    from axe_playwright_python.sync_playwright import Axe

    page = page_with(key_tones(CLIPS), theme=theme, width=width)
    pick(figure(page), 1)
    found = Axe().run(page).response["violations"]
    assert [(v["id"], [n["target"] for n in v["nodes"]]) for v in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_says_something_where_scripts_do_not_run(page_with):
    said = figure(page_with(key_tones(CLIPS), java_script_enabled=False)).inner_text()
    assert "needs JavaScript" in said and re.search(r"-5.5 dB\s+1 A #\s+A", said)


def test_stands_alone():
    html = key_tones(CLIPS[:1]).html
    assert not re.search(
        r"https?:|src=|@import|url\(|fetch\(", html.replace("http://www.w3.org/2000/svg", "")
    )
    assert len(html) < 40_000 and html.count("</script>") == 1
