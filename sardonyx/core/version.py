"""The version of this release, as daemons and clients state it."""

VERSION = "0.1.0"
