"""All tables, as SQLAlchemy Core describes them. Migrations make them; a test holds both equal.

Times are milliseconds since 1970 in UTC, sizes bytes, unless a name says otherwise.
"""

from drumline.database.tables.base import metadata
from drumline.database.tables.machines import devices, hosts

__all__ = ["devices", "hosts", "metadata"]
