"""Chapter 16: frames and places apart, matching what was seen with what was said, and two ways to join them.

Batches, frames, places and words are of different numbers but where a case is about that; vectors differ in
length, so that a cosine is no dot product.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.senses.contrastive_loss import CONTRASTIVE_LOSS
from attention_course.checks.senses.divided import DIVIDED
from attention_course.checks.senses.gated_cross_attention import GATED_CROSS_ATTENTION
from attention_course.checks.senses.image_prefix_weights import IMAGE_PREFIX_WEIGHTS
from attention_course.checks.senses.retrieval_at_1 import RETRIEVAL_AT_1
from attention_course.checks.senses.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="16. Video and several senses",
    exercises=(DIVIDED, CONTRASTIVE_LOSS, RETRIEVAL_AT_1, GATED_CROSS_ATTENTION, IMAGE_PREFIX_WEIGHTS),
)
