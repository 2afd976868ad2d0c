"""The published experiments as studies: which methods are compared, over which grids, at which size.

A study's run-config under experiments/ has the paper's setting, or what fits of it, with one algorithm. ``reduced`` is
what a default run changes so that two CPU cores finish in about an hour, and its page says whether they do; ``--full``
leaves it out. Each file has the studies of one paper, but ``order`` those that compare methods of several.
"""

from benchmarks.studies import (
    adafgda,
    chest,
    codasca,
    deprl,
    deprl_scaling,
    fcsg,
    fmgda,
    heart,
    order,
    private,
    when_auc_pays,
)
from benchmarks.studies.study import REPO, Method, Study, method
from edelweiss.common import Value
from edelweiss.lab.compare.runs import Settings
from edelweiss.lab.sweep.study import Between, drawn

_PAPERS = (adafgda, fmgda, codasca, chest, fcsg, deprl, deprl_scaling, heart, order, private)
STUDIES: dict[str, Study] = {study.name: study for paper in _PAPERS for study in paper.STUDIES}
