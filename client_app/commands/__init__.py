"""What an operator can tell a site on the command line; one file a command, see ``client_app/__main__.py``."""
