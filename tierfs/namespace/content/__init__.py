"""Open files, from open to RELEASE: which object is read and written, and when it becomes an op."""
