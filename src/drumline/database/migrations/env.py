"""Run by alembic for each migration, on the connection that `migrate` hands over."""

from alembic import context

from drumline.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
