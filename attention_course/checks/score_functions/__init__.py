"""Chapter 2: general, additive and concat scores, the cosine, Luong's decoder, and a window that moves.

Inputs are drawn so that the usual mistakes show. The widths of queries and keys differ where nothing
hides behind that, and agree in one case where a transposed or a wrong weight would otherwise raise.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.score_functions.additive import ADDITIVE
from attention_course.checks.score_functions.attentional import ATTENTIONAL
from attention_course.checks.score_functions.concat import CONCAT
from attention_course.checks.score_functions.cosine import COSINE
from attention_course.checks.score_functions.general import GENERAL
from attention_course.checks.score_functions.local_p import LOCAL_P
from attention_course.checks.score_functions.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="2. Score functions",
    exercises=(GENERAL, ADDITIVE, CONCAT, COSINE, ATTENTIONAL, LOCAL_P),
)
