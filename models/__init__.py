"""Networks by name, and the view of a network as one flat vector.

In every network the last fully connected layer, the *head*, is registered last and applied last. Its weight
and bias are therefore the end of the flat vector: x is the body, then the head, split at one index. That is
all that the personalised methods need, which share the body and keep the head; see `models.layout.Layout`.
"""

from edelweiss.models.architecture import Architecture, resolve_device
from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.networks import MODELS, build, keeps_statistics
from edelweiss.models.precision import prepare
from edelweiss.models.torchvision import STEMS

__all__ = [
    "MODELS",
    "STEMS",
    "Architecture",
    "FlatNetwork",
    "ModelError",
    "build",
    "keeps_statistics",
    "prepare",
    "resolve_device",
]
