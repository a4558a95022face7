"""Chapter 4: splitting and merging heads, multi-head attention, what a head adds, grouped heads.

Lengths, numbers of heads and widths all differ, so that an axis taken for another shows. Weights are
drawn so that queries and keys have variance about 1: no softmax is saturated, and a wrong scale shows.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.multi_head.grouped_query_attention import GROUPED_QUERY_ATTENTION
from attention_course.checks.multi_head.head_contributions import HEAD_CONTRIBUTIONS
from attention_course.checks.multi_head.merge_heads import MERGE_HEADS
from attention_course.checks.multi_head.multi_head_attention import MULTI_HEAD_ATTENTION
from attention_course.checks.multi_head.shared import NAME
from attention_course.checks.multi_head.split_heads import SPLIT_HEADS

CHAPTER = Chapter(
    name=NAME,
    title="4. Multi-head attention",
    exercises=(SPLIT_HEADS, MERGE_HEADS, MULTI_HEAD_ATTENTION, HEAD_CONTRIBUTIONS, GROUPED_QUERY_ATTENTION),
)
