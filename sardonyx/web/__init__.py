"""The pages and the JSON API behind ``sardonyx web``: a process that reads the coordinator's log, and changes nothing."""
