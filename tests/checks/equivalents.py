"""Mechanical mutants that are accepted, each with the reason why it is no mistake.

(exercise, or what its name begins with; operator; part of the change; reason). An entry that no longer
fits any mutant is an error, so that the list stays as short as it is.
"""

_GRADIENT_CANCELS = "softmax does not change with a shift, so the maximum's gradient cancels"
_SQUARE = "the two axes have one length: both count words"
_HARMLESS = "the number is there to be replaced afterwards; any other finite one does as well"
_FAR_ENOUGH = "its exponential is exactly 0 beside every score that a model computes"
_CHOICE = "it only decides which are kept; a choice has no gradient"
_FOR_MISTAKES = "a parameter that only the mistakes set, to another value"
_SYMMETRIC = "the two are added, multiplied or compared without an order"

EQUIVALENT = (
    ("", "leak", "-10000.0", _FAR_ENOUGH),
    ("", "leak", "-1000000000.0", _FAR_ENOUGH),
    ("01_bottleneck.decode", "arguments swapped", "update(word, context, state, start)", _SYMMETRIC),
    ("02_score_functions.cosine", "constant", "1e-08 -> 2e-08", "both are far below every length"),
    ("02_score_functions.local_p", "term left out", "first + T_k", _FOR_MISTAKES),
    ("02_score_functions.local_p", "operands swapped", "positions - centres", "a distance has no sign"),
    ("02_score_functions.local_p", "detached", "offsets.abs()", _CHOICE),
    ("03_scaled_dot_product", "detached", "scores.amax(-1, keepdim=True)", _GRADIENT_CANCELS),
    ("05_masks.safe_softmax", "constant", "0.0 -> 0.1", _HARMLESS),
    ("05_masks.decoder_attention", "constant", "0.0 -> 0.1", _HARMLESS),
    ("05_masks.reader", "off by one", "-2 -> -3", _SQUARE),
    ("05_masks.reader", "arguments swapped", "past, word", _SYMMETRIC),
    ("06_positions.alibi_weights", "operands swapped", "torch.arange", "a distance has no sign"),
    ("06_positions.notices_order", "detached", "", "what is returned is true or false: it has no gradient"),
    ("06_positions.notices_order", "operands swapped", "undone", "a distance has no sign"),
    ("06_positions.notices_order", "comparison", "NOTICED", "no difference meets the bound exactly"),
    ("06_positions.rotary_attention", "off by one", "-2 -> -3", _SQUARE),
    ("07_transformer.pre_norm_block", "plus for minus", "variance + EPSILON",
     "it counts in rows of equal numbers alone, which the exercise of the norm asks for"),
    ("07_transformer.pre_norm_block", "term left out", "variance + EPSILON",
     "it counts in rows of equal numbers alone, which the exercise of the norm asks for"),
    ("07_transformer.writer", "off by one", "-2 -> -3", "a size that is not used"),
    ("08_kernels.attend_block", "detached", "scores.amax(-1)", _GRADIENT_CANCELS),
    ("08_kernels.attend_block", "off by one", "-1 -> 0", "what it starts with has one value: it broadcasts"),
    ("09_decoding.nucleus", "comparison", "before < p", "sums that meet p exactly are ties of rounding"),
    ("09_decoding.nucleus", "detached", "logits.softmax(-1)", _CHOICE),
    ("09_decoding.nucleus", "detached", "cumsum", _CHOICE),
    ("09_decoding.nucleus", "off by one", "0 -> 1", "any place behind the first: the first is always kept"),
    ("09_decoding.decoder_layer", "off by one", "-2 -> -3", "a size that is not used"),
    ("09_decoding.decoder_layer", "arguments swapped", "self.kept", _FOR_MISTAKES),
    ("10_linear.strided_weights", "off by one", "-1 -> -2", _SQUARE),
    ("11_ring", "detached", "torch.maximum(lse_a, lse_b)", _GRADIENT_CANCELS),
    ("11_ring", "detached", "top.masked_fill", _GRADIENT_CANCELS),
    ("11_ring", "constant", "0.0 -> 0.1", _HARMLESS),
    ("11_ring", "constant", "1.0 -> 2.0", _HARMLESS),
    ("12_seeing.head_entropy", "off by one", "-1 -> -2", _SQUARE),
    ("12_seeing.head_divergence", "results swapped", "weights[:, None]", _SYMMETRIC),
    ("12_seeing.head_divergence", "another axis", "-1 -> -2", "all queries are averaged afterwards"),
    ("12_seeing.rollout", "off by one", "-1 -> -2", _SQUARE),
    ("12_seeing.without_key", "off by one", "-1 -> -2", _SQUARE),
    ("12_seeing.without_key", "constant", "1.0 -> 2.0", _HARMLESS),
    ("13_probing.previous_token_score", "off by one", "-1 -> -2", _SQUARE),
    ("13_probing.induction_score", "another axis", "-1 -> -2", "all of both axes is added up afterwards"),
    ("13_probing.best_head", "leak", "", "what is compared are weights: any number below 0 loses"),
    ("14_vision.attention_distance", "off by one", "-1 -> -2", _SQUARE),
    ("14_vision.attention_distance", "another axis", "-1 -> -2", "all of both axes is averaged"),
    ("14_vision.attention_distance", "operands swapped", "places", "a distance has no sign"),
    ("14_vision.pointing_accuracy", "constant", "-1.0 -> -2.0",
     "what is compared are weights: any number below 0 loses"),
    ("15_speech.location_score", "arguments swapped", "location, bias", _SYMMETRIC),
    ("15_speech.error_rate", "arguments swapped", "_table(said, right)", "the distance is symmetric"),
    ("15_speech.error_rate", "factor left out", "edge_", _FOR_MISTAKES),
    ("16_senses.retrieval_at_1", "leak", "", "what is compared are cosines: any number below -1 loses"),
    ("16_senses.retrieval_at_1", "off by one", "-1 -> -2", "as many images as texts"),
    ("16_senses.image_prefix_weights", "off by one", "-1 -> -2", _SQUARE),
    ("17_graphs.with_self_loops", "term left out", "start + number", _FOR_MISTAKES),
    ("17_graphs", "constant", "1.0 -> 2.0", _HARMLESS),
    ("17_graphs", "constant", "0.0 -> 0.1", _HARMLESS),
    ("17_graphs.graph_attention", "comparison", "total > 0", "no node of it is without an edge"),
    ("17_graphs.graph_attention", "off by one", "0 -> ", "no node of it is without an edge"),
    ("17_graphs.graph_attention", "leak", "", "a larger maximum is a shift; segment_softmax asks for more"),
    ("17_graphs.graph_attention", "factor left out", "other.dim() - 1", "its edges have two axes"),
    ("18_memory.same_episode", "operands swapped", "ended.cumsum(1)", "numbers are compared for equality"),
    ("18_memory.returns", "detached", "rewards[0]", "only its size is used"),
    ("18_memory.returns", "off by one", "0 -> ", "only the size of the row is used"),
)  # fmt: skip
