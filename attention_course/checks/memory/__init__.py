"""Chapter 18: who is of one episode, a memory that grows, a state that is reset, returns, the loss.

Rollouts are drawn so that the usual mistakes show: episodes end at different steps in different
environments, two ends stand next to each other, and what belongs to nothing any more is large.
"""

from attention_course.checks.engine.exercise import Chapter
from attention_course.checks.memory.policy_loss import POLICY_LOSS
from attention_course.checks.memory.recurrent_states import RECURRENT_STATES
from attention_course.checks.memory.remember import REMEMBER
from attention_course.checks.memory.returns import RETURNS
from attention_course.checks.memory.same_episode import SAME_EPISODE
from attention_course.checks.memory.shared import NAME

CHAPTER = Chapter(
    name=NAME,
    title="18. Acting with memory",
    exercises=(SAME_EPISODE, REMEMBER, RECURRENT_STATES, RETURNS, POLICY_LOSS),
)
