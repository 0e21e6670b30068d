"""One database for the service, on SQLite or PostgreSQL: tables, transactions, migrations.

`engine` opens it, `tables` describes what is in it, `migrate` brings it up to date. What rows mean,
and who may change them, belongs to `monitoring` (history) and `jobs` (trainings and leases).
"""

from drumline.database.engine import Database, DatabaseError, now_ms, open_database

__all__ = ["Database", "DatabaseError", "now_ms", "open_database"]
