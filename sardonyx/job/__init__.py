"""From a user's file to a valid job spec: the builder, parsing, loading, validation, the bundle of the user's code.

Imports :mod:`sardonyx.connectors` and below. Daemons do not need it: they read the spec.
"""
