"""The SQL connector: tables of a PostgreSQL or SQLite database."""
