"""What experiments count: numbers, seconds, memory, and on which machine."""
