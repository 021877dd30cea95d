"""workers' own tokens, turns of repositories, and repositories that are removed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("access_tokens") as batch_op:
        batch_op.add_column(sa.Column("worker", sa.String(length=200), nullable=True))
        batch_op.create_index(batch_op.f("ix_access_tokens_worker"), ["worker"])
    with op.batch_alter_table("workers") as batch_op:
        batch_op.add_column(sa.Column("contract", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("token_id", KEY, nullable=True))
        batch_op.create_index(batch_op.f("ix_workers_token_id"), ["token_id"])
        batch_op.create_foreign_key(
            batch_op.f("fk_workers_token_id_access_tokens"), "access_tokens", ["token_id"], ["id"]
        )
    with op.batch_alter_table("repositories") as batch_op:
        batch_op.add_column(sa.Column("served_at", sa.DateTime(timezone=True), nullable=True))
        batch_op.add_column(sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Take back."""
    with op.batch_alter_table("repositories") as batch_op:
        batch_op.drop_column("removed_at")
        batch_op.drop_column("served_at")
    with op.batch_alter_table("workers") as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_workers_token_id_access_tokens"), type_="foreignkey")
        batch_op.drop_index(batch_op.f("ix_workers_token_id"))
        batch_op.drop_column("token_id")
        batch_op.drop_column("contract")
    with op.batch_alter_table("access_tokens") as batch_op:
        batch_op.drop_index(batch_op.f("ix_access_tokens_worker"))
        batch_op.drop_column("worker")
