"""The data sets known by name, a row each in `SOURCES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from edelweiss.common import PlugInError, Registry, shown
from edelweiss.common.identity import name_of
from edelweiss.datasets.source import Source
from edelweiss.datasets.sources import bundled, cifar, harbox, heart_disease, image_folder, mnist, omniglot


@dataclass(frozen=True)
class Dataset:
    """A data set of the registry."""

    read: Callable[..., Source]  # reads the data set; if `sized`, takes the form of its images
    groups: str = ""  # the groups that the partition by-group keeps together, such as "characters"; empty: none
    sites: bool = False  # whether these groups are natural sites, for the partition sites
    sized: bool = False  # whether it has images of any size, scaled by the key image-size
    features: tuple[str, ...] = ()  # names of a table's columns, in the order of the inputs


_BUILT_IN: dict[str, Dataset] = {
    "breast-cancer": Dataset(bundled.breast_cancer, features=bundled.BREAST_CANCER),
    "digits": Dataset(bundled.digits),
    "mnist": Dataset(partial(mnist.read, "mnist", "MNIST")),
    "mnist-pairs": Dataset(mnist.pairs),
    "fashion-mnist": Dataset(partial(mnist.read, "fashion-mnist", "FashionMNIST")),
    "cifar10": Dataset(partial(cifar.read, "cifar10", "CIFAR10", 10)),
    "cifar100": Dataset(partial(cifar.read, "cifar100", "CIFAR100", 100)),
    "image-folder": Dataset(image_folder.read, sized=True),
    "omniglot": Dataset(omniglot.read, groups="characters"),
    "heart-disease": Dataset(heart_disease.read, groups="hospitals", sites=True, features=heart_disease.FEATURES),
    "harbox": Dataset(harbox.read, groups="users", sites=True, features=harbox.FEATURES),
}


def _accept(name: str, thing: Any) -> tuple[str, Dataset]:
    """Check a data set from outside: a function without arguments that returns what `data` of a simulation may be."""
    from edelweiss.datasets.given import as_source

    if isinstance(thing, Dataset):
        return name or name_of(thing), thing
    if not callable(thing):
        raise PlugInError(f"dataset {shown(thing)}: must be a function that returns arrays, or each site's data")
    return name or name_of(thing), Dataset(lambda places: as_source(thing()), groups="sites", sites=True)


SOURCES: Registry[Dataset] = Registry("dataset", _BUILT_IN, _accept)
