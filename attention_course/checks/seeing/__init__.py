"""Chapter 12: how widely heads look, how unlike they are, what passes all layers, what a weight weighs.

Weights are drawn as a softmax's rows, neither saturated nor flat, or by hand in whole tenths. They hold
exact zeros where a mask has put them: behind the end of a sentence, in the future, at a token that a head
never looks at.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.seeing.head_divergence import HEAD_DIVERGENCE
from attention_course.checks.seeing.head_entropy import HEAD_ENTROPY
from attention_course.checks.seeing.rollout import ROLLOUT
from attention_course.checks.seeing.shared import NAME
from attention_course.checks.seeing.value_weighted import VALUE_WEIGHTED
from attention_course.checks.seeing.without_key import WITHOUT_KEY

CHAPTER = Chapter(
    name=NAME,
    title="12. Seeing attention",
    exercises=(HEAD_ENTROPY, HEAD_DIVERGENCE, ROLLOUT, VALUE_WEIGHTED, WITHOUT_KEY),
)
