"""What the namespace is made of: nodes, and the tree of names that are pending. No I/O."""
