"""``python -m edelweiss``: the command ``edelweiss``."""

import sys

from edelweiss.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
