"""`python -m scaleout.cli` is `scaleout`."""

from scaleout.cli import main

main()
