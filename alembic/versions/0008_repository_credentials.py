"""credentials of private repositories."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "repository_credentials",
        sa.Column("repository_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("user", sa.String(length=200), nullable=False),
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("known_hosts", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_repository_credentials_repository_id_repositories")
        ),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_repository_credentials")),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_table("repository_credentials")
