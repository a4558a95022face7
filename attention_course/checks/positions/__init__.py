"""Chapter 6: sinusoids, their shift by k, rotary positions and attention, ALiBi, who notices the order.

Inputs are drawn so that the usual mistakes show. Sentences, heads and tokens differ in number, and
agree in a case of their own where a wrong axis would otherwise raise. Positions stay below 50: there
a table made in float32 and one made in float64 are the same.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.positions.add_positions import ADD_POSITIONS
from attention_course.checks.positions.alibi_weights import ALIBI_WEIGHTS
from attention_course.checks.positions.notices_order import NOTICES_ORDER
from attention_course.checks.positions.rotary_attention import ROTARY_ATTENTION
from attention_course.checks.positions.rotate import ROTATE
from attention_course.checks.positions.shared import NAME
from attention_course.checks.positions.shift import SHIFT
from attention_course.checks.positions.to_half import TO_HALF

CHAPTER = Chapter(
    name=NAME,
    title="6. Positional encoding",
    exercises=(ADD_POSITIONS, SHIFT, ROTATE, TO_HALF, ALIBI_WEIGHTS, ROTARY_ATTENTION, NOTICES_ORDER),
)
