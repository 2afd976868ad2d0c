"""What a model is worth, with uncertainty: AUROC, average precision, calibration, decision curves, from counts alone.

Each file is a short chapter of the mathematics, on arrays of counts; `evidence.summary` has the form of evidence.json.
"""

from evidence.grid import Counts
from evidence.labels import of_labels
from evidence.summary import VERSION, Site, summary
from evidence.told import Told

__all__ = ["VERSION", "Counts", "Site", "Told", "of_labels", "summary"]
