"""``edelweiss-site extract``: from a hospital's database to its table, by a query that it has approved."""

from edelweiss.client_app.extract.run import Extraction, extract, pending
from edelweiss.client_app.extract.source import ExtractError

__all__ = ["ExtractError", "Extraction", "extract", "pending"]
