"""What a new daemon needs of the one before: pending rows, and what the kernel knows (G6)."""
