"""Exercise 1: scores."""

import torch
from torch import Tensor

from attention_course.checks.engine.drawing import normal, tenths
from attention_course.checks.engine.exercise import Case, Exercise, Mistake
from attention_course.checks.scaled_dot_product import shared
from attention_course.checks.scaled_dot_product.shared import NAME


def _scores_in_place(query: Tensor, key: Tensor) -> Tensor:
    query /= query.shape[-1] ** 0.5
    return query @ key.mT


SCORES = Exercise(
    name=f"{NAME}.scores",
    title="Scaled scores",
    points=1,
    difficulty=1,
    minutes=5,
    reference=shared.scaled_scores,
    returns=("scores",),
    cases=(
        Case("one decimal", lambda g: (tenths(g, 2, 4), tenths(g, 3, 4))),
        Case("wide head", lambda g: (normal(g, 3, 256), normal(g, 5, 256))),
        Case(
            "batch, float64",
            lambda g: (
                normal(g, 2, 5, 6, dtype=torch.float64),
                normal(g, 2, 3, 6, dtype=torch.float64),
            ),
        ),
        Case(
            "batch and heads",
            lambda g: (shared.split_heads(g, 2, 5, 3, 8), shared.split_heads(g, 2, 7, 3, 8)),
        ),
        Case("gradient", lambda g: (normal(g, 4, 7), normal(g, 6, 7)), gradient=True),
    ),
    mistakes=(
        Mistake(
            "no scale",
            lambda query, key: query @ key.mT,
            "These are the plain dot products. Nothing is divided yet: what keeps their variance "
            "at 1 when d_k grows?",
        ),
        Mistake(
            "divided by d_k",
            lambda query, key: query @ key.mT / query.shape[-1],
            "The scores are divided by d_k in all. That overshoots: their variance becomes 1/d_k. "
            "Either the power of d_k is wrong, or √d_k is divided out twice: once from query or key "
            "and once more from the other or from the product.",
        ),
        Mistake(
            "scaled by the number of keys",
            lambda query, key: query @ key.mT / key.shape[-2] ** 0.5,
            "The scale is √T_k, the number of keys. A score is a sum over d_k products, however "
            "many keys there are. Look at which axis you take the length of.",
        ),
        Mistake(
            "scaled by the number of queries",
            lambda query, key: query @ key.mT / query.shape[-2] ** 0.5,
            "The scale is √T_q, the number of queries. A score is a sum over d_k products, however "
            "many queries there are. Look at which axis you take the length of.",
        ),
        Mistake(
            "d_k read from the first axis",
            lambda query, key: query @ key.mT / len(key) ** 0.5,
            "The scale is √len(key). len counts along the first axis: that is the number of keys, or with a "
            "batch in front the number of sentences. d_k is the width of a key. Count from the end.",
        ),
        Mistake(
            "d_k read from axis 1",
            lambda query, key: query @ key.mT / query.shape[1] ** 0.5,
            "The scale is taken from shape[1]. That is d_k only as long as there is no batch and "
            "there are no heads in front. Count the axis from the end.",
        ),
        Mistake(
            "multiplied by √d_k",
            lambda query, key: query @ key.mT * query.shape[-1] ** 0.5,
            "The scores are multiplied by √d_k. That makes large heads worse instead of better. "
            "Look at the direction of the scale.",
        ),
        Mistake(
            "queries and keys swapped",
            lambda query, key: key @ query.mT / query.shape[-1] ** 0.5,
            "There is one row per key and one column per query. Queries go down, keys go across: "
            "look at the order of the product.",
        ),
        Mistake(
            "all axes reversed by .T",
            lambda query, key: query @ key.T / query.shape[-1] ** 0.5,
            "key.T reverses every axis, the batch too, and is right for a single matrix only. Look "
            "for the transpose that swaps just the last two axes.",
        ),
        Mistake(
            "softmax of the scores",
            lambda query, key: shared.softmax(shared.scaled_scores(query, key)),
            "You return weights: a softmax has gone over the scores already. Scores are asked for, and those "
            "may be any numbers. The softmax is the next exercise.",
        ),
        Mistake(
            "query changed in place",
            _scores_in_place,
            "The scale is written into query itself, as query /= ... does. Whoever called your "
            "function now holds another query. Make a new tensor.",
        ),
        Mistake(
            "cosine instead of dot product",
            lambda query, key: (
                (query / query.norm(dim=-1, keepdim=True)) @ (key / key.norm(dim=-1, keepdim=True)).mT
            ),
            "Every vector is divided by its own length. Lengths count in a dot product: only √d_k, "
            "the same number for all, is taken out.",
        ),
    ),
    hints=(
        "There is one score for each pair of a query and a key: [..., T_q, T_k]. Which axis do the "
        "two inputs share, and what happens to it in a matrix product?",
        "A matrix product sums over the last axis of the left factor and the last but one of the "
        "right. key.mT swaps the last two axes of key and leaves the others alone.",
        "d_k is the length of query's last axis. Divide the product once by its square root.",
    ),
)
