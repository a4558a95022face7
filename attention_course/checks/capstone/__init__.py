"""The capstone: a GPT from an empty file, in milestones that are tested by what it does.

Names and wiring inside the model are the learner's own. A state is given by documented names, and a method
of the learner's takes it over; everything else is seen from outside.
"""

from attention_course.checks.capstone.generate import GENERATE
from attention_course.checks.capstone.logits import LOGITS
from attention_course.checks.capstone.overfit import OVERFIT
from attention_course.checks.capstone.sample import SAMPLE
from attention_course.checks.capstone.shared import NAME
from attention_course.checks.capstone.start import START
from attention_course.checks.capstone.tokenizer import TOKENIZER
from attention_course.checks.capstone.train import TRAIN
from attention_course.checks.capstone.update import UPDATE
from attention_course.checks.engine.exercise import Chapter

CHAPTER = Chapter(
    name=NAME,
    title="19. A Transformer from an empty file",
    exercises=(TOKENIZER, LOGITS, START, OVERFIT, GENERATE, SAMPLE, UPDATE, TRAIN),
)
