"""``python -m sardonyx``: the same as the ``sardonyx`` command."""

from sardonyx.cli import main

if __name__ == "__main__":
    main()
