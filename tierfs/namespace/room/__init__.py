"""Room on the local tier: what goes, what is brought, who waits, and what moves to the shared tier
when the drive is full or has failed (G9).
"""
