"""Where samples come from, how they are split over sites, and how batches are drawn from them."""

from edelweiss.datasets.augmentation import Augmentation
from edelweiss.datasets.config import DATASETS, DataConfig
from edelweiss.datasets.data_summary import DataSummary, wrong_cohort
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.evaluation_digest import fingerprints
from edelweiss.datasets.facts import Facts, class_of_nobody, columns_hash, patient_hashes, wrong_facts
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.loading import (
    SiteData,
    class_names_of,
    features_of,
    forget_data,
    load_site,
    load_test,
    patients_of_test,
)
from edelweiss.datasets.model_schema import ModelSchema
from edelweiss.datasets.partition import PARTITIONS
from edelweiss.datasets.reading import data_doubts
from edelweiss.datasets.samplers import SAMPLERS, Sampler, make_sampler
from edelweiss.datasets.samples import Samples, moments, standardisation
from edelweiss.datasets.site import label_values, stamp
from edelweiss.datasets.sources import SOURCES

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SAMPLERS",
    "SOURCES",
    "Augmentation",
    "DataConfig",
    "DataError",
    "DataSummary",
    "Facts",
    "ImageCache",
    "ModelSchema",
    "Sampler",
    "Samples",
    "SiteData",
    "class_names_of",
    "class_of_nobody",
    "columns_hash",
    "data_doubts",
    "features_of",
    "fingerprints",
    "forget_data",
    "label_values",
    "load_site",
    "load_test",
    "make_sampler",
    "moments",
    "patient_hashes",
    "patients_of_test",
    "stamp",
    "standardisation",
    "wrong_cohort",
    "wrong_facts",
]
