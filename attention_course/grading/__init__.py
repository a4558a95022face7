"""Grading a class: from source notebooks to what learners get."""
