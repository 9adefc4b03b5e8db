"""The coordinator daemon.

``core`` decides (pure), ``loop`` drives it and writes the log, ``history`` reads the log back. Never imports :mod:`peer`.
"""
