"""Entry point of the `topsmon` command and of `python -m topsmon`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from topsmon.cli import main

    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    main()
