"""Chapter 14: an image as a row of patches, where each stands, a glimpse, how far and at what heads look.

Images are seldom square and have several channels, and no two axes are equally long but where a case is
about that: what is counted column by column, or with height and width exchanged, shows.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.vision.add_grid_positions import ADD_GRID_POSITIONS
from attention_course.checks.vision.attention_distance import ATTENTION_DISTANCE
from attention_course.checks.vision.glimpse import GLIMPSE
from attention_course.checks.vision.patches import PATCHES
from attention_course.checks.vision.pointing_accuracy import POINTING_ACCURACY
from attention_course.checks.vision.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="14. Vision",
    exercises=(PATCHES, ADD_GRID_POSITIONS, GLIMPSE, ATTENTION_DISTANCE, POINTING_ACCURACY),
)
