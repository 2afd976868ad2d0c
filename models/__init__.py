"""Networks by name, each viewed as one flat parameter vector.

In every network the last fully connected layer, the *head*, is registered and applied last. Its weight and bias are
therefore the end of the flat vector: x is the body followed by the head, split at one index. Personalised methods,
which share the body and keep the head local, need nothing else; see `models.layout.Layout`.
"""

from edelweiss.models.architecture import Architecture, resolve_device
from edelweiss.models.errors import ModelError
from edelweiss.models.flat import FlatNetwork
from edelweiss.models.networks import MODELS, build, tracks_statistics
from edelweiss.models.precision import prepare_device
from edelweiss.models.torchvision import STEMS
