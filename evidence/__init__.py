"""What a model is worth, with uncertainty: AUROC, average precision, calibration, decision curves, from counts alone.

Each file is a short chapter of the mathematics, on arrays of counts; `evidence.summary` has the form of evidence.json.
"""

from edelweiss.evidence.grid import Counts
from edelweiss.evidence.labels import of_labels
from edelweiss.evidence.reported import Told
from edelweiss.evidence.summary import VERSION, Site, summary

__all__ = ["VERSION", "Counts", "Site", "Told", "of_labels", "summary"]
