"""Pytest's processes, and what is made of what they say: cases, classes, logs."""
