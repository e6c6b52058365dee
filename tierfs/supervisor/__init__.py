"""The process that outlives the daemon: it keeps /dev/fuse and starts a worker again and again."""
