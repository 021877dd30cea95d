"""The kinds of forge whose API is known."""

from __future__ import annotations

import enum


class Forge(enum.StrEnum):
    """A forge's kind. Forgejo speaks as Gitea does."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    FORGEJO = "forgejo"
