"""The client of the API: what the command line uses, and what a script may."""
