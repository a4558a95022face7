"""Chapter 17: self-loops, a softmax for each node, the scores of GAT and GATv2, and a layer of them.

Graphs are drawn so that the usual mistakes show: edges in no order, one of them twice, nodes that nobody
points to (the last one among them), and a case of 400 nodes in which a table of all pairs is told from a
list of edges.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.graphs.gat_scores import GAT_SCORES
from attention_course.checks.graphs.gatv2_scores import GATV2_SCORES
from attention_course.checks.graphs.graph_attention import GRAPH_ATTENTION
from attention_course.checks.graphs.segment_softmax import SEGMENT_SOFTMAX
from attention_course.checks.graphs.shared import NAME
from attention_course.checks.graphs.with_self_loops import WITH_SELF_LOOPS

CHAPTER = Chapter(
    name=NAME,
    title="17. Graphs",
    exercises=(WITH_SELF_LOOPS, SEGMENT_SOFTMAX, GAT_SCORES, GATV2_SCORES, GRAPH_ATTENTION),
)
