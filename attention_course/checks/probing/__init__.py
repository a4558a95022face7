"""Chapter 13: measures of what a head does, the baseline beside it, and what it is worth to a loss.

Inputs are drawn so that the usual mistakes show: no two axes are equally long but where a case is about
that, some sentences are short, and a head that does well on one half does worse on the other.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.probing.best_head import BEST_HEAD
from attention_course.checks.probing.best_offset import BEST_OFFSET
from attention_course.checks.probing.head_importance import HEAD_IMPORTANCE
from attention_course.checks.probing.induction_score import INDUCTION_SCORE
from attention_course.checks.probing.previous_token_score import PREVIOUS_TOKEN_SCORE
from attention_course.checks.probing.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="13. Probing heads",
    exercises=(PREVIOUS_TOKEN_SCORE, INDUCTION_SCORE, BEST_OFFSET, BEST_HEAD, HEAD_IMPORTANCE),
)
