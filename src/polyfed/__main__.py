"""`python -m polyfed`, where the command itself is not on the path."""

from polyfed.cli import main

if __name__ == "__main__":  # processes that are spawned import this file too
    main()
