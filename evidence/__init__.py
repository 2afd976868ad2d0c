"""Evaluation with uncertainty: AUROC, average precision, calibration and decision curves, computed from counts.

Each file covers one part of the mathematics, on arrays of counts; `evidence.summary` documents evidence.json.
"""

from edelweiss.evidence.grid import Counts
from edelweiss.evidence.labels import multilabel_summary
from edelweiss.evidence.reported import Reported
from edelweiss.evidence.summary import VERSION, Site, summary

__all__ = ["VERSION", "Counts", "Reported", "Site", "multilabel_summary", "summary"]
