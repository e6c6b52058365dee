"""Asking: what a name leads to, what a directory lists, what stat(2) and xattrs say of it (G10)."""
