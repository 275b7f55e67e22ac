"""``python -m inface.cli``."""

from . import main

main()
