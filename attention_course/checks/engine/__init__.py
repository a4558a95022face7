"""What judges: cases, outcomes, verdicts, records. It knows no chapter but by name."""
