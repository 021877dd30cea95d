"""Interpreters with torch: found, built, shared, thrown away, and the overlay of an attempt on top."""
