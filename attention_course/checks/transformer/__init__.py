"""Chapter 7: the parts of a layer and a loss, a layer, a training run, a fault to mend, weights to load.

Inputs are drawn so that the usual mistakes show. Sentences, tokens and columns differ in number, and
agree in a case of their own where a wrong axis would otherwise raise; gains are not 1 and shifts and
biases not 0; one token has no variance at all.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.transformer.cross_attention import CROSS_ATTENTION
from attention_course.checks.transformer.encoder import ENCODER
from attention_course.checks.transformer.encoder_layer import ENCODER_LAYER
from attention_course.checks.transformer.feed_forward import FEED_FORWARD
from attention_course.checks.transformer.layer_norm import LAYER_NORM
from attention_course.checks.transformer.next_token_loss import NEXT_TOKEN_LOSS
from attention_course.checks.transformer.pre_norm_block import PRE_NORM_BLOCK
from attention_course.checks.transformer.shared import NAME
from attention_course.checks.transformer.train import TRAIN
from attention_course.checks.transformer.writer import WRITER

CHAPTER = Chapter(
    name=NAME,
    title="7. The Transformer",
    exercises=(
        LAYER_NORM,
        FEED_FORWARD,
        PRE_NORM_BLOCK,
        CROSS_ATTENTION,
        NEXT_TOKEN_LOSS,
        ENCODER_LAYER,
        TRAIN,
        WRITER,
        ENCODER,
    ),
)
