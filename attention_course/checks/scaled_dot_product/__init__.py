"""Chapter 3: scores, softmax, attention, self-attention, and what a saturated softmax costs.

Inputs are drawn so that the usual mistakes show: the numbers of queries, keys and columns all
differ, no softmax is saturated unless the case is about that, and one head has d_k = 256, where a
wrong scale cannot hide.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.scaled_dot_product.attention import ATTENTION
from attention_course.checks.scaled_dot_product.scores import SCORES
from attention_course.checks.scaled_dot_product.self_attention import SELF_ATTENTION
from attention_course.checks.scaled_dot_product.shared import NAME
from attention_course.checks.scaled_dot_product.softmax import SOFTMAX
from attention_course.checks.scaled_dot_product.softmax_jacobian import SOFTMAX_JACOBIAN

CHAPTER = Chapter(
    name=NAME,
    title="3. Scaled dot-product attention",
    exercises=(SCORES, SOFTMAX, ATTENTION, SELF_ATTENTION, SOFTMAX_JACOBIAN),
)
