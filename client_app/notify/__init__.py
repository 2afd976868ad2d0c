"""Notifications: what the operator has asked to be told of, in ``[notify]`` of the site's file.

It is a process beside `join`, which reads the same files as the page: a mail server that hangs delays no run. It loads
neither torch nor the site's data. `watch` finds what is new, `post` keeps it until it is told, `ways` tells it.
"""
