"""Where samples come from, how they are split over sites, and how batches are drawn from them."""

from datasets.errors import DataError
from datasets.facts import Cohort, Facts, columns_hash
from datasets.loading import DATASETS, DataConfig, SiteData, load_site, load_test
from datasets.partition import PARTITIONS
from datasets.samplers import SAMPLERS, Sampler, make_sampler
from datasets.samples import Samples, moments, standardisation

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SAMPLERS",
    "Cohort",
    "DataConfig",
    "DataError",
    "Facts",
    "Sampler",
    "Samples",
    "SiteData",
    "columns_hash",
    "load_site",
    "load_test",
    "make_sampler",
    "moments",
    "standardisation",
]
