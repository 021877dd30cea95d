"""what is sent to forges and webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "forge_links",
        sa.Column("repository_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("forge", sa.String(32), nullable=False),
        sa.Column("api_url", sa.String(length=2000), nullable=False),
        sa.Column("project", sa.String(length=400), nullable=False),
        sa.Column("credential", sa.Text(), nullable=False),
        sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_forge_links_repository_id_repositories")
        ),
        sa.PrimaryKeyConstraint("repository_id", name=op.f("pk_forge_links")),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("url", sa.String(length=2000), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        sa.Column("repository_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("secret", sa.String(length=200), nullable=False),
        sa.Column("old_secret", sa.String(length=200), nullable=True),
        sa.Column("old_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("paused_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_why", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_webhooks_repository_id_repositories")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_webhooks_repository_id"), ["repository_id"], unique=False)

    op.create_table(
        "commit_statuses",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("repository_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("commit", sa.String(length=64), nullable=False),
        sa.Column("context", sa.String(length=200), nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("wanted", sa.String(32), nullable=False),
        sa.Column("text", sa.String(length=140), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("posts", sa.Integer(), nullable=False),
        sa.Column("shown", sa.String(length=240), nullable=True),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("target", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claim", sa.String(length=32), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_commit_statuses_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["repository_id"], ["repositories.id"], name=op.f("fk_commit_statuses_repository_id_repositories")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commit_statuses")),
        sa.UniqueConstraint(
            "repository_id", "commit", "context", name=op.f("uq_commit_statuses_repository_id_commit_context")
        ),
    )
    with op.batch_alter_table("commit_statuses", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_commit_statuses_changed_at_id"), ["changed_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_commit_statuses_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_commit_statuses_state_due_at"), ["state", "due_at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_commit_statuses_target_claimed_until"), ["target", "claimed_until"], unique=False
        )

    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("webhook_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("message", sa.String(length=64), nullable=False),
        sa.Column("event", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("log", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("target", sa.String(length=40), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claim", sa.String(length=32), nullable=True),
        sa.Column("claimed_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_webhook_deliveries_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("message", name=op.f("uq_webhook_deliveries_message")),
    )
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_webhook_deliveries_job_id"), ["job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_webhook_deliveries_state_due_at"), ["state", "due_at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_webhook_deliveries_target_claimed_until"), ["target", "claimed_until"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_webhook_deliveries_webhook_id_id"), ["webhook_id", "id"], unique=False)


def downgrade() -> None:
    """Take back."""
    with op.batch_alter_table("webhook_deliveries", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_webhook_deliveries_webhook_id_id"))
        batch_op.drop_index(batch_op.f("ix_webhook_deliveries_target_claimed_until"))
        batch_op.drop_index(batch_op.f("ix_webhook_deliveries_state_due_at"))
        batch_op.drop_index(batch_op.f("ix_webhook_deliveries_job_id"))

    op.drop_table("webhook_deliveries")
    with op.batch_alter_table("commit_statuses", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_commit_statuses_target_claimed_until"))
        batch_op.drop_index(batch_op.f("ix_commit_statuses_state_due_at"))
        batch_op.drop_index(batch_op.f("ix_commit_statuses_job_id"))
        batch_op.drop_index(batch_op.f("ix_commit_statuses_changed_at_id"))

    op.drop_table("commit_statuses")
    with op.batch_alter_table("webhooks", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_webhooks_repository_id"))

    op.drop_table("webhooks")
    op.drop_table("forge_links")
