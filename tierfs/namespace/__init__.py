"""What the mount shows: an overlay of pending ops over the shared tier.

`tree` decides (pure state, no I/O), the other modules carry out; `FileSystem` is the whole.
"""
