"""What the mount shows: an overlay of pending ops over the shared tier.

`overlay` is pure state, `core` what all others share; `finding` asks, `content` is for open files,
`changing` for names and attributes; `grouping` keeps whole checkpoints together, `room` the local
tier from filling, `outage` answers for a silent shared tier, `restart` goes on after a death;
`outcome` ends what is committed. `FileSystem` is the whole.
"""
