"""The six-token sentence that runs through the book: its vectors and the weights of its first head.

Every number has one decimal, so that a reader can redo each step by hand. The three columns of
``X`` stand for *thing*, *action* and *place*. The weights are made by hand, not trained: they let
verbs look for things, prepositions for places, and nouns for what happens to them.
"""

import numpy as np

TOKENS = ("the", "cat", "sat", "on", "the", "mat")

#: [6, 3], one row per token: thing, action, place.
X = np.array(
    [
        [0.1, 0.0, 0.1],  # the
        [1.0, 0.2, 0.0],  # cat
        [0.0, 1.0, 0.3],  # sat
        [0.0, 0.2, 1.0],  # on
        [0.1, 0.0, 0.1],  # the
        [0.9, 0.0, 0.6],  # mat
    ]
)

#: [3, 2] each: d_model = 3, d_k = d_v = 2. Rows are applied from the right: ``query = X @ W_Q``.
W_Q = np.array([[-2.0, 0.0], [3.0, -2.0], [2.0, 2.0]])
W_K = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
W_V = np.array([[2.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])

for _array in (X, W_Q, W_K, W_V):
    _array.setflags(write=False)  # nothing a notebook does may change the book's numbers
