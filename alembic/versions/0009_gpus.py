"""use of devices, and who keeps some for a cell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("usage", sa.JSON(), nullable=True))
    with op.batch_alter_table("cells", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column("reserved_worker_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True)
        )
        batch_op.create_foreign_key(
            batch_op.f("fk_cells_reserved_worker_id_workers"), "workers", ["reserved_worker_id"], ["id"]
        )


def downgrade() -> None:
    """Take back."""
    with op.batch_alter_table("cells", schema=None) as batch_op:
        batch_op.drop_constraint(batch_op.f("fk_cells_reserved_worker_id_workers"), type_="foreignkey")
        batch_op.drop_column("reserved_worker_id")
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("usage")
