"""a case's history by an index that has its order."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("cases", schema=None) as batch_op:
        batch_op.create_index("ix_cases_history", ["node_digest", "id"], unique=False)
        batch_op.drop_index(batch_op.f("ix_cases_node_digest"))


def downgrade() -> None:
    """Take back."""
    with op.batch_alter_table("cases", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_cases_node_digest"), ["node_digest"], unique=False)
        batch_op.drop_index("ix_cases_history")
