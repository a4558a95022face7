"""Chapter 8: the online softmax, two partial answers made one, the tile loop, the slope of a block of scores.

Inputs are drawn so that the usual mistakes show. The maximum rises in some rows of a block and not in
others; scores reach a few hundreds, where an exponential taken without a maximum overflows; key blocks
end with a shorter one, and the queries' block stands anywhere among them.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.kernels.attend_block import ATTEND_BLOCK
from attention_course.checks.kernels.backward import BACKWARD
from attention_course.checks.kernels.merge import MERGE
from attention_course.checks.kernels.shared import NAME
from attention_course.checks.kernels.step import STEP

CHAPTER = Chapter(
    name=NAME,
    title="8. The cost of attention",
    exercises=(STEP, MERGE, ATTEND_BLOCK, BACKWARD),
)
