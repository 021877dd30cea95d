"""imported results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("origin", sa.String(32), server_default="run", nullable=False))
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.alter_column("worker_id", existing_type=KEY, nullable=True)


def downgrade() -> None:
    """Take back. What was imported goes: without the column it would pass for a run of ours."""
    for statement in _removals():
        op.execute(statement)
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.alter_column("worker_id", existing_type=KEY, nullable=False)
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("origin")


def _removals() -> list[sa.Delete]:
    jobs = sa.table("jobs", sa.column("id"), sa.column("origin"))
    cells = sa.table("cells", sa.column("id"), sa.column("job_id"))
    attempts = sa.table("attempts", sa.column("id"), sa.column("cell_id"))
    imported = sa.select(jobs.c.id).where(jobs.c.origin == "imported")
    of_cells = sa.select(cells.c.id).where(cells.c.job_id.in_(imported))
    of_attempts = sa.select(attempts.c.id).where(attempts.c.cell_id.in_(of_cells))
    parts = [sa.table(name, sa.column("attempt_id")) for name in ("cases", "processes", "artifacts")]
    keys = sa.table("idempotency_keys", sa.column("job_id"))
    return [
        *(sa.delete(part).where(part.c.attempt_id.in_(of_attempts)) for part in parts),
        sa.delete(attempts).where(attempts.c.cell_id.in_(of_cells)),
        sa.delete(cells).where(cells.c.job_id.in_(imported)),
        sa.delete(keys).where(keys.c.job_id.in_(imported)),
        sa.delete(jobs).where(jobs.c.origin == "imported"),
    ]
