"""What holds tested code: a keeper, a sandbox, a group of its own, limits, an environment without secrets."""
