"""hooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("jobs") as batch_op:
        batch_op.add_column(sa.Column("planned", sa.Boolean(), server_default=sa.true(), nullable=False))
        batch_op.add_column(sa.Column("detail", sa.Text(), nullable=True))
    op.create_table(
        "hook_secrets",
        sa.Column("id", KEY, nullable=False),
        sa.Column("repository_id", KEY, nullable=False),
        sa.Column("secret", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_hook_secrets_repository_id_repositories")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hook_secrets")),
    )
    op.create_index(op.f("ix_hook_secrets_repository_id"), "hook_secrets", ["repository_id"])
    op.create_table(
        "triggers",
        sa.Column("id", KEY, nullable=False),
        sa.Column("repository_id", KEY, nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=False),
        sa.Column("trigger", sa.String(length=300), nullable=False),
        sa.Column("line", sa.String(length=300), nullable=True),
        sa.Column("job_id", KEY, nullable=False),
        sa.Column("happened", sa.JSON(), nullable=False),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("approved_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("approved_by", sa.String(length=200), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_triggers_repository_id_repositories")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_triggers_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_triggers")),
        sa.UniqueConstraint("job_id", name=op.f("uq_triggers_job_id")),
        sa.UniqueConstraint(
            "repository_id", "commit", "trigger", name=op.f("uq_triggers_repository_id_commit_trigger")
        ),
    )
    op.create_index(op.f("ix_triggers_repository_id_line"), "triggers", ["repository_id", "line"])
    op.create_table(
        "deliveries",
        sa.Column("id", KEY, nullable=False),
        sa.Column("provider", sa.String(length=16), nullable=False),
        sa.Column("delivery", sa.String(length=200), nullable=False),
        sa.Column("event", sa.String(length=100), nullable=False),
        sa.Column("repository_id", KEY, nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("heard", sa.JSON(), nullable=True),
        sa.Column("job_id", KEY, nullable=True),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_deliveries_repository_id_repositories")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_deliveries_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("provider", "delivery", name=op.f("uq_deliveries_provider_delivery")),
    )
    op.create_index(op.f("ix_deliveries_repository_id"), "deliveries", ["repository_id"])
    op.create_index(op.f("ix_deliveries_job_id"), "deliveries", ["job_id"])


def downgrade() -> None:
    """Take back."""
    op.drop_table("deliveries")
    op.drop_table("triggers")
    op.drop_table("hook_secrets")
    with op.batch_alter_table("jobs") as batch_op:
        batch_op.drop_column("detail")
        batch_op.drop_column("planned")
