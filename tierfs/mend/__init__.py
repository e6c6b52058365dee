"""Mending what is wrong on disk, without a daemon: damaged shared files, lost journals.

Runs in the process of a command, as root; both tiers may be in use.
"""
