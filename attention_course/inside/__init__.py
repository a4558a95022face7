"""Looking inside: what every head of a model did, what it adds up to, and what it does not say."""

from attention_course.inside.attribution import norms, weights_times_gradient
from attention_course.inside.gates import attentions, gated, importance
from attention_course.inside.measures import distance, divergence, entropy
from attention_course.inside.paths import flow, rollout
from attention_course.inside.recording import Layer, record, weights_of

__all__ = [
    "Layer",
    "attentions",
    "distance",
    "divergence",
    "entropy",
    "flow",
    "gated",
    "importance",
    "norms",
    "record",
    "rollout",
    "weights_of",
    "weights_times_gradient",
]
