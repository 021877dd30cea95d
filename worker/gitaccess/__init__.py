"""How git reaches a repository: addresses, and credentials that lie nowhere. Standard library only, for both sides."""
