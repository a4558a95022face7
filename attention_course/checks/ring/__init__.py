"""Chapter 11: attention over one block of keys, two partial answers merged, a step of the ring, zigzag.

Inputs are drawn so that the usual mistakes show. Queries, keys and columns differ in number, and agree
in a case of their own where a wrong axis would otherwise raise. The parts weigh differently, so that a
plain mean is wrong; some scores overflow when they are exponentiated as they are; some queries may
look at nothing, in one part or in both.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.ring.block import BLOCK
from attention_course.checks.ring.deal import DEAL
from attention_course.checks.ring.merge import MERGE
from attention_course.checks.ring.ring_step import RING_STEP
from attention_course.checks.ring.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="11. Many machines",
    exercises=(BLOCK, MERGE, RING_STEP, DEAL),
)
