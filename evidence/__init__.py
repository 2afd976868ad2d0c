"""What a model is worth, with uncertainty: AUROC, average precision, calibration, decision curves, without the scores.

Each file is a short chapter of the mathematics, on arrays of counts; `evidence.summary` has the form of evidence.json.
"""

from evidence.grid import BINS, Counts, Sketch, common_cuts
from evidence.summary import VERSION, Site, of_labels, summary
from evidence.told import Told

__all__ = ["BINS", "VERSION", "Counts", "Site", "Sketch", "Told", "common_cuts", "of_labels", "summary"]
