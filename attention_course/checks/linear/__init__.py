"""Chapter 10: linear attention, its state token by token and chunk by chunk, and a strided mask.

Inputs are drawn so that the usual mistakes show. Keys and values differ in width, and agree in a case
of their own where a transposed state would otherwise raise. States given come from tokens that were
drawn before, as in use: a random state could make a normaliser 0.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.linear.chunk_step import CHUNK_STEP
from attention_course.checks.linear.linear_attention import LINEAR_ATTENTION
from attention_course.checks.linear.shared import NAME
from attention_course.checks.linear.step import STEP
from attention_course.checks.linear.strided_weights import STRIDED_WEIGHTS

CHAPTER = Chapter(
    name=NAME,
    title="10. Cheaper attention",
    exercises=(LINEAR_ATTENTION, STEP, STRIDED_WEIGHTS, CHUNK_STEP),
)
