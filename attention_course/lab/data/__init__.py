"""What experiments read: the running example, made-up languages, text."""
