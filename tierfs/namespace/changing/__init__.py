"""Names and attributes that are made, moved, set and taken away: decided in one step, journaled."""
