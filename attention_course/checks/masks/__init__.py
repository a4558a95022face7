"""Chapter 5: the causal mask, padding, queries that may look nowhere, both masks together, a leak to mend.

Inputs are drawn so that the usual mistakes show. The numbers of queries and keys differ where the
corner matters and agree where a transposed mask would otherwise raise; one batch has as many
sentences as heads; some scores lie below every finite fill value.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.masks.causal_weights import CAUSAL_WEIGHTS
from attention_course.checks.masks.decoder_attention import DECODER_ATTENTION
from attention_course.checks.masks.padding_weights import PADDING_WEIGHTS
from attention_course.checks.masks.reader import READER
from attention_course.checks.masks.safe_softmax import SAFE_SOFTMAX
from attention_course.checks.masks.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="5. Masks",
    exercises=(CAUSAL_WEIGHTS, PADDING_WEIGHTS, SAFE_SOFTMAX, DECODER_ATTENTION, READER),
)
