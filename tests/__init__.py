"""The tests; a package, since libraries install one of this name that would hide a folder without this file."""
