"""What ``python -m client_app`` was: the command ``edelweiss-site``."""

import sys

sys.exit("python -m client_app is now the command edelweiss-site (pip install . installs it)")
