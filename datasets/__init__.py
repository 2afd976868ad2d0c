"""Data sets, their splits over sites, and the sampling of batches."""

from edelweiss.datasets.augmentation import Augmentation
from edelweiss.datasets.config import DataConfig
from edelweiss.datasets.data_summary import DataSummary, wrong_summary
from edelweiss.datasets.errors import DataError
from edelweiss.datasets.evaluation_digest import fingerprints
from edelweiss.datasets.facts import Facts, columns_hash, missing_classes, patient_hashes, wrong_facts
from edelweiss.datasets.image_cache import ImageCache
from edelweiss.datasets.loading import SiteData, class_names_of, common_test_patients, features_of, load_site, load_test
from edelweiss.datasets.model_schema import ModelSchema
from edelweiss.datasets.partition import PARTITIONS
from edelweiss.datasets.reading import table_warnings
from edelweiss.datasets.samplers import SAMPLERS, Sampler, make_sampler
from edelweiss.datasets.samples import Samples, standardisation
from edelweiss.datasets.site import label_values, stamp
from edelweiss.datasets.sources import SOURCES
