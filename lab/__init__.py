"""Tools for studies: sweeps, comparisons, reports, submission, and importers of public images."""
