"""This machine's cards: inventory, health, leases among workers, and what an attempt takes of them."""
