"""What ``python -m server_app`` was: the command ``edelweiss``."""

import sys

sys.exit("python -m server_app is now the command edelweiss (pip install . installs it)")
