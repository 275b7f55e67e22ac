"""``python -m inface.cli``."""

from . import main

if __name__ == "__main__":  # the workers of a sweep import it too
    main()
