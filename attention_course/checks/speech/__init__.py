"""Chapter 15: a pyramid over frames, what a state stands for, a score that knows where it looked, a step of
writing, and how much of what was written is wrong.

Clips of a batch differ in length, odd and even, and what lies behind a clip's end is never 0 by itself.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.speech.error_rate import ERROR_RATE
from attention_course.checks.speech.location_score import LOCATION_SCORE
from attention_course.checks.speech.pyramid import PYRAMID
from attention_course.checks.speech.samples_of import SAMPLES_OF
from attention_course.checks.speech.shared import NAME
from attention_course.checks.speech.spell import SPELL

CHAPTER = Chapter(
    name=NAME,
    title="15. Speech",
    exercises=(PYRAMID, SAMPLES_OF, LOCATION_SCORE, SPELL, ERROR_RATE),
)
