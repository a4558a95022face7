"""How experiments train: one loop for the whole book, its runs side by side, and kept."""
