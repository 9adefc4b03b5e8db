"""The ``files`` connector: CSV, JSON and Parquet files in directories."""
