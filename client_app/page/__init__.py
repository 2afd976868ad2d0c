"""The site's page: its state, runs and audit log in a browser, for the hospital's operator.

It is a process beside `join`, which starts it: it reads and writes the same files as the commands, so a page that is
slow or down never stops a run. It sends no data, and changes neither data nor rules.
"""
