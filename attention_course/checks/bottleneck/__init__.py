"""Chapter 1: a sentence's summary, teacher forcing, the loss, one look back, and a decoder that looks.

Inputs are drawn so that the usual mistakes show: what stands in the padding is noise, never zeros;
in one batch the longest sentence is shorter than the batch is wide; sentences are not sorted.
"""

from attention_course.checks.bottleneck.decode import DECODE
from attention_course.checks.bottleneck.look_back import LOOK_BACK
from attention_course.checks.bottleneck.previous_tokens import PREVIOUS_TOKENS
from attention_course.checks.bottleneck.shared import NAME
from attention_course.checks.bottleneck.summary import SUMMARY
from attention_course.checks.bottleneck.token_loss import TOKEN_LOSS
from attention_course.checks.engine.exercise import Chapter

CHAPTER = Chapter(
    name=NAME,
    title="1. The bottleneck",
    exercises=(SUMMARY, PREVIOUS_TOKENS, TOKEN_LOSS, LOOK_BACK, DECODE),
)
