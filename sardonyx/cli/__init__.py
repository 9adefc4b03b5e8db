"""The `sardonyx` command."""
