"""What the mount does while the shared tier does not answer (DESIGN 4, G8)."""
