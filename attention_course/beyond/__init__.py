"""Beyond text: score, mask, softmax and mix among patches, frames, nodes and memories.

One module for each chapter of part V. What an experiment reads (digits, graphs, tasks to act in) is in
the laboratory; nothing here needs more than torch.
"""
