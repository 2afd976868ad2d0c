"""Where samples come from, how they are split over sites, and how batches are drawn from them."""

from datasets.augmentation import Augmentation
from datasets.cohort import Cohort, cohort_schema, wrong_cohort
from datasets.config import DATASETS, DataConfig
from datasets.errors import DataError
from datasets.facts import Facts, class_of_nobody, columns_hash, patient_hashes, wrong_facts
from datasets.image_cache import ImageCache
from datasets.judged_on import fingerprints
from datasets.loading import SiteData, class_names_of, features_of, forget_data, load_site, load_test, patients_of_test
from datasets.meaning import Meaning
from datasets.partition import PARTITIONS
from datasets.reading import data_doubts
from datasets.samplers import SAMPLERS, Sampler, make_sampler
from datasets.samples import Samples, moments, standardisation
from datasets.site import label_values, stamp
from datasets.sources import SOURCES

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SAMPLERS",
    "SOURCES",
    "Augmentation",
    "Cohort",
    "DataConfig",
    "DataError",
    "Facts",
    "ImageCache",
    "Meaning",
    "Sampler",
    "Samples",
    "SiteData",
    "class_names_of",
    "class_of_nobody",
    "cohort_schema",
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
