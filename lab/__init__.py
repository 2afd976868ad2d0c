"""Tools for studies: many runs, what they say of each other, a run's report, and folders made of public images."""
