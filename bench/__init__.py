"""Measurements as ratios to native file systems and to a plain script, within one run."""
