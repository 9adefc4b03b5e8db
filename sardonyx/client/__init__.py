"""Submits jobs and tells their state: the client, job handles, views, dead letters.

Imports :mod:`coordinator`, :mod:`sardonyx.job` and below.
"""
