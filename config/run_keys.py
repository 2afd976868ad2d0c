"""Every key of a run-config but those of algorithms and problems: default, bounds, and what it means."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edelweiss.config.keys import Keys
from edelweiss.config.values import (
    Above0,
    AlgorithmName,
    Classes,
    Crop,
    DatasetName,
    Degrees,
    Folds,
    Fraction,
    Gigabytes,
    ModelName,
    Natural,
    PartitionName,
    Positive,
    ProblemName,
    SamplerName,
    Seconds,
    Seed,
    Share,
    Side,
    Sites,
    Threads,
    Width,
    Words,
    Workers,
)
from edelweiss.datasets.image_file import Colour, Fit


class RunKeys(Keys):
    """The fields of a `RunConfig` that are keys, with dashes for underscores."""

    # What is trained, by what.
    algorithm: AlgorithmName = Field("codasca", description="how it is trained")
    problem: ProblemName = Field("auc", description="what is optimised")
    model: ModelName = Field("mlp", description="the network")
    hidden: Width = Field(32, description="width of mlp's two hidden layers, channels of conv4")
    head: str = Field(
        "",
        description='layer that the head of personalised algorithms begins with, such as "head"; empty: the last one',
    )
    init_from: str = Field(
        "",
        description="the model.safetensors of a finished run, or that run's folder, to start "
        "from; empty: from the seed",
    )
    init_head: Literal["keep", "fresh"] = Field(
        "keep",
        description="of init-from: its head, with the problem's scalars; fresh: drawn by the seed, they at their start",
    )
    pretrained: str = Field(
        "",
        description="torchvision's file of weights for the model, such as "
        "resnet18-f37072fd.pth, to start from; empty: none",
    )
    rounds: Positive = Field(40, description="R: communication rounds")
    batch_size: Positive = Field(
        16,
        description="samples per step; conditional problems: b, outer ones (maml: tasks), "
        "but of auprc and partial-auc m, inner ones",
    )

    # The data, and how it is split.
    dataset: DatasetName = Field("breast-cancer", description="where samples come from")
    data_root: str = Field(
        "",
        description="folder with mnist/, cifar10/, heart_disease/, ..., of image-folder with "
        "train/; empty: that of the environment variable EDELWEISS_DATA, then "
        "~/.cache/edelweiss",
    )
    data_file: str = Field(
        "",
        description='the table of dataset "table": CSV or Parquet, with a label column; of "arrays" '
        "a file of what was given in Python",
    )
    study: str = Field(
        "",
        description="study file that says what the columns of that table, or of the hospitals', "
        "mean; hospitals read their own copy",
    )
    group_column: str = Field(
        "",
        description="column of data-file that is no feature: partitions sites and "
        "split-sites make sites of its groups; all others keep groups whole, or patients where "
        "these are named",
    )
    image_size: Side = Field(
        0,
        description="side of the squares that images of image-folder and site become; 0: all "
        "have one size, and keep it",
    )
    image_fit: Fit = Field(
        "crop",
        description="how: the shorter side is scaled to that, the middle kept; or the longer one, with black borders",
    )
    image_colour: Colour = Field(
        "auto", description="channels of these images; auto: grey if all of a site are, else rgb"
    )
    views: Words = Field(
        "",
        description='values of the column view of a site\'s labels.csv, as in "AP,PA"; other rows '
        'are left out; "blank" is the empty one; empty: all',
    )
    bad_images: Share = Field(
        0.0,
        description="share of a site's images that may be unreadable, and are left out; a site with more takes no part",
    )
    partition: PartitionName = Field(
        "dirichlet",
        description="how it is dealt to the sites; by-group: whole "
        "characters, hospitals, users; sites: the data's own; split-sites: parts of "
        "these",
    )
    concentration: Above0 = Field(1.0, description="of dirichlet: the smaller, the more the sites' case mixes differ")
    positive_classes: Classes = Field("", description='of multi-class data, such as "5-9"; empty: the second half')
    negative_classes: Classes = Field("", description="empty: the first half")
    thin_class: Literal["positive", "negative"] = Field("positive", description="the class that thin-share makes rare")
    thin_share: Share = Field(
        0.0,
        description="its share among the training samples afterwards, at most; 0: none is "
        'removed; never applied to "site" or where all classes are kept',
    )
    test_share: Share = Field(0.25, description="common test set of data that come without one")
    holdout_share: Share = Field(
        0.2, description="what each site keeps back to evaluate on; of its own data a hospital says it"
    )
    personal_test: bool = Field(
        False, description="instead of that, a site is given the part of the common test set that has its own class mix"
    )
    folds: Folds = Field(
        0, description="k-fold cross-validation within each site: holdout-share and test-share play no part; 0: off"
    )
    fold: Natural = Field(0, description="which of the folds each site keeps back, from 0")
    data_seed: Seed = Field(
        -1, description="of how data are dealt, thinned and held out; -1: seed, which is of all other random choices"
    )
    label: str = Field(
        "label",
        description="label column of data-file, of a site's own table or labels.csv; several "
        "labels, each 1, 0, -1 or blank: their columns, separated by commas. Put a name with a comma in "
        "it into double quotes",
    )
    label_preset: Literal["", "chexpert", "torchxrayvision"] = Field(
        "", description="how LibAUC (for CheXpert) or TorchXRayVision read such labels, instead of the next two"
    )
    uncertain: str = Field(
        "",
        description="what -1 in them stands for: ones, zeros, ignore (not known), or label by "
        'label, as in "Edema=ones,zeros"; empty: it may not occur',
    )
    blank: Literal["", "zeros", "ignore"] = Field(
        "",
        description="what a blank in them stands for; empty: it may not "
        "occur. A column that is blank in all rows is a label that the "
        "site lacks",
    )
    standardise: bool = Field(True, description="by mean and deviation over all sites, which send sums and counts")
    sampler: SamplerName = Field(
        "auto",
        description="auto: what the problem needs; uniform: each sample once per "
        "epoch, and a round starts a new one; fixed-positives: so many in each",
    )
    positives_per_batch: Positive = Field(
        4, description="for fixed-positives; auprc and partial-auc: b, their outer samples"
    )
    augment_flip: bool = Field(False, description="of training images every other, by chance, is mirrored left-right")
    augment_crop: Crop = Field(
        0.0,
        description="up to this share of a side, up to 0.5, is cut off anywhere, and the "
        "rest enlarged to the image's size",
    )
    augment_rotate: Degrees = Field(
        0.0,
        description="degrees, up to 180, that an image is turned by at most; from "
        "outside comes the training mean, or 0 without standardise",
    )
    augment_brightness: Fraction = Field(
        0.0, description="share, up to 1, by which an image is brighter or darker at most; values stay within 0 to 255"
    )

    # Who takes part, and what happens when somebody does not.
    sites: Sites = Field(8, description="K: how many sites the run is for")
    min_replies: Natural = Field(
        0,
        description="usable answers that a round, and the beginning, needs; 0: every site "
        "has to answer. It waits for all but those that are away (cdma: for no "
        "more)",
    )
    wait_timeout: Seconds = Field(60.0, description="seconds to wait for the sites to connect")
    round_timeout: Seconds = Field(
        3600.0, description="seconds that a round waits for a site that stays silent or away"
    )
    on_bad_update: Literal["skip", "stop"] = Field(
        "skip", description="on NaN or infinity in a site's answer; from most sites it always stops"
    )
    loss_bound: Above0 = Field(
        1e6,
        description="a loss beyond it (saddle: a distance) is divergence: at the "
        "coordinator or most sites it stops the run, a single site is left out",
    )

    # How it is computed.
    engine: Literal["flower", "local"] = Field(
        "flower", description="flower: simulation or deployment, as flwr run was told; local: on this machine"
    )
    workers: Workers = Field(
        0,
        description="processes of the local engine; 0: one per core, at most one per site, but "
        "one alone for a GPU or a run too short or too light to gain by more",
    )
    threads: Threads = Field(1, description="threads of each process; of convolutions the last bits depend on it")
    stack: Natural = Field(
        1,
        description="clients that a process of the local engine trains side by side, which is "
        "faster where there are many and the network is small; 0: as many as pay; 1: one after the "
        "other, with the bits of the other engines",
    )
    state_memory: Gigabytes = Field(
        0.0,
        description="GB of memory for what the sites of the local engine remember; "
        "of more than that all lies in files of the temporary folder; 0: half of what is "
        "free",
    )
    device: str = Field("auto", description="auto | cpu | cuda | cuda:1")
    amp: Literal["", "bf16"] = Field(
        "",
        description="bf16: gradients in bfloat16 where that is safe and the device "
        "has instructions for it; evaluations stay in float32",
    )
    matmul_precision: Literal["highest", "high"] = Field(
        "highest", description="of a GPU; high: products of float32 in TF32, faster, with three digits"
    )
    wire: Literal["float32", "bf16", "float16"] = Field(
        "float32", description="numbers on the wire in each round, of vectors of 256 or more; float32: exact"
    )
    wire_estimators: Literal["", "int8"] = Field(
        "",
        description="int8: control variates and running estimates, which "
        "are neither x nor y, in 8 bits with error feedback",
    )
    bn: Literal["average", "local"] = Field("average", description="batch-norm statistics")

    # What is measured and kept.
    metrics: Words = Field(
        "",
        description="metrics from outside, functions of labels, scores and weights: module:name, or what an installed "
        "package offers, separated by commas",
    )
    evaluate_every: Natural = Field(1, description="rounds between two evaluations; 0: only at the end")
    central_test: bool = Field(
        True, description='also evaluate on a common test set at the coordinator (not with dataset "site")'
    )
    evidence: bool = Field(
        True, description="evidence.json at the end: intervals, calibration, curves; two classes only"
    )
    compare_with: str = Field(
        "",
        description="the model.safetensors or the folder of a run of the same network: "
        "AUROCs on the same patients are compared (DeLong, paired); empty: none",
    )
    checkpoint_every: Natural = Field(
        1,
        description="rounds between two writings of the model, and of what "
        "resume needs; more where writing would take over 2 % of the time; 0: only the "
        "model, at the end",
    )
    tracker: Literal["", "tensorboard", "mlflow", "wandb"] = Field(
        "", description="who is also told of each round's numbers; its package has to be installed"
    )
    report: bool = Field(
        True,
        description="write report.html, curves, a model card and a TRIPOD+AI table at the end; false saves seconds",
    )
    runs_dir: str = Field("runs", description="where run folders go")
    state_dir: str = Field(
        "",
        description="where simulated sites keep their memory, and their own models for good "
        "(where a hospital writes is for its operator to say); empty: a private folder for "
        "temporary files, of the local engine one that ends with the run",
    )
    share_model: bool = Field(
        False,
        description="each site keeps the final common model, with a card, in its "
        "state-dir; of a personalised algorithm it keeps its own",
    )
    run_name: str = Field(
        "", description="of the run folder, not taken by another run; empty: time, algorithm and data"
    )
    resume: str = Field(
        "",
        description="the folder of a run that was stopped or killed: it goes on there, with the "
        "keys of its config.toml",
    )
