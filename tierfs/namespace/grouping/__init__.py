"""Checkpoint directories as the mount sees them: who writes in one, when it is whole, how it is
sealed and removed (DESIGN 6). What is decided from facts alone is in `tierfs.groups`.
"""
