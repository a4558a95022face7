"""What the book's experiments share: the running example, data, training, measuring, plotting."""
