"""Chapter 6's explorable: a position as clock hands, a shift as one turn of each, mistaken positions."""

from attention_course.explorables.base import Explorable, explorable


def clock_hands() -> Explorable:
    """Return the figure in which a position is read off d_model / 2 clocks.

    The reader moves the position p and the shift k, and chooses the base and the clocks in use. The
    figure computes the encodings of 128 positions ([128, 8], the columns of ``positions.sinusoidal``),
    the turn of each clock by ω·k, and how alike the encodings of p and of every other position are:
    their dot product divided by the number of clocks. Source: Vaswani et al. 2017, section 3.5.
    """
    data = {
        "d_model": 8,
        "length": 128,
        "bases": [10_000.0, 100.0, 10.0],
        "position": 20,
        "shift": 3,
        "largest_shift": 64,
    }
    return explorable("clock_hands", data, _FALLBACK)


_FALLBACK = """<p><em>Here stands a figure that needs JavaScript: four clocks whose hands show a
position and turn with it. It moves in the built book, in Jupyter and in Colab.</em></p>"""
