"""What can be done with the model of a run on the command line; one file a command, see ``server_app/__main__.py``."""
