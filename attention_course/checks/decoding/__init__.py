"""Chapter 9: a cache and attention with one, top-p, the slots of a ring, a layer, writing made fast.

Inputs are drawn so that the usual mistakes show. The sizes of past, new tokens, heads and rows all
differ but in cases of their own, where a wrong axis would otherwise raise. Probabilities are drawn
without ties, and no sum of them lies on p.
"""

from attention_course.checks.decoding.append import APPEND
from attention_course.checks.decoding.attend_cached import ATTEND_CACHED
from attention_course.checks.decoding.decoder_layer import DECODER_LAYER
from attention_course.checks.decoding.nucleus import NUCLEUS
from attention_course.checks.decoding.ring import RING
from attention_course.checks.decoding.shared import NAME
from attention_course.checks.decoding.write import WRITE
from attention_course.checks.engine.exercise import Chapter

CHAPTER = Chapter(
    name=NAME,
    title="9. Decoding",
    exercises=(APPEND, ATTEND_CACHED, NUCLEUS, RING, DECODER_LAYER, WRITE),
)
