"""Composition root: checks what it was given, builds the rooms, starts and stops them."""
