"""The run-config keys other than options of algorithms and problems: types, defaults and meanings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edelweiss.config.keys import Keys
from edelweiss.config.values import (
    Above0,
    AlgorithmName,
    Classes,
    Clip,
    Crop,
    DatasetName,
    Degrees,
    Delta,
    Epsilon,
    Folds,
    Fraction,
    Gigabytes,
    ModelName,
    Multiple,
    Natural,
    PartitionName,
    Positive,
    ProblemName,
    Rate,
    SamplerName,
    Seconds,
    Seed,
    Share,
    Side,
    Sites,
    Threads,
    Trimmed,
    Width,
    Words,
    Workers,
)
from edelweiss.datasets.image_file import Colour, Fit
from edelweiss.federation.robust import MULTIPLE, TRIM


class RunKeys(Keys):
    """The fields of a `RunConfig` that are keys."""

    # Training.
    algorithm: AlgorithmName = Field("codasca", description="the federated algorithm")
    problem: ProblemName = Field("auc", description="the objective")
    model: ModelName = Field("mlp", description="the network")
    hidden: Width = Field(32, description="width of mlp's two hidden layers, channels of conv4")
    head: str = Field(
        "",
        description='first layer of the head of personalised algorithms, such as "head"; empty: the last layer',
    )
    init_from: str = Field(
        "",
        description="the model.safetensors or the folder of a finished run to start from; empty: initialise by the "
        "seed",
    )
    init_head: Literal["keep", "fresh"] = Field(
        "keep",
        description="with init-from, keep: its head and the problem's scalars; fresh: a head drawn by the seed, and "
        "initial scalars",
    )
    pretrained: str = Field(
        "",
        description="file of torchvision weights to start from, such as resnet18-f37072fd.pth; empty: none",
    )
    rounds: Positive = Field(40, description="R: communication rounds")
    batch_size: Positive = Field(
        16,
        description="samples per step; for conditional problems b, the outer samples (maml: tasks); for auprc and "
        "partial-auc m, the inner samples",
    )

    # Data and splits.
    dataset: DatasetName = Field("breast-cancer", description="the data set")
    data_root: str = Field(
        "",
        description="folder with mnist/, cifar10/, heart_disease/, ..., or with train/ for image-folder; empty: the "
        "environment variable EDELWEISS_DATA, then ~/.cache/edelweiss",
    )
    data_file: str = Field(
        "",
        description='for dataset "table", a CSV or Parquet file with a label column; for "arrays", the file of data '
        "given in Python",
    )
    study: str = Field(
        "",
        description="study file that describes the columns of data-file or of the hospitals' tables; each hospital "
        "reads its own copy",
    )
    group_column: str = Field(
        "",
        description="column of data-file with groups, not a feature: the partitions sites and split-sites turn groups "
        "into sites; all others keep groups, or named patients, whole",
    )
    image_size: Side = Field(
        0,
        description="side to which images of image-folder and site are scaled; 0: unscaled, all have one size",
    )
    image_fit: Fit = Field(
        "crop",
        description="crop: scale the shorter side and keep the centre; pad: scale the longer side and add black "
        "borders",
    )
    image_colour: Colour = Field(
        "auto", description="channels of these images; auto: grey if all images of a site are grey, else rgb"
    )
    views: Words = Field(
        "",
        description='values of the column view in a site\'s labels.csv to use, as in "AP,PA"; "blank" is the empty '
        "value; empty: all",
    )
    bad_images: Share = Field(
        0.0,
        description="largest share of unreadable images, which are left out; a site with more does not take part",
    )
    partition: PartitionName = Field(
        "dirichlet",
        description="split over sites; by-group: whole characters, hospitals or users; sites: the natural sites; "
        "split-sites: parts of natural sites",
    )
    concentration: Above0 = Field(
        1.0, description="of the dirichlet partition: the smaller, the more the sites' class mixes differ"
    )
    fine_tune: Natural = Field(
        0,
        description="local steps that each site takes on its own samples from the final model, which it then keeps and "
        "evaluates; 0: none",
    )
    fine_tune_lr: Rate = Field(0.0, description="step size of fine-tune; 0: the algorithm's local one")
    fine_tune_part: Literal["model", "head"] = Field("model", description="what fine-tune trains")
    pooled: bool = Field(
        False,
        description="train as if all sites' training samples were in one place: what the algorithm does without "
        "federation; in simulations only",
    )
    positive_classes: Classes = Field(
        "",
        description='classes of multi-class data that become positive, such as "5-9"; empty: the second half of a '
        "built-in data set",
    )
    negative_classes: Classes = Field("", description="classes that become negative; empty: the first half")
    thin_class: Literal["positive", "negative"] = Field("positive", description="the class that thin-share thins")
    thin_share: Share = Field(
        0.0,
        description="largest share of that class among training samples, by removing random ones; 0: no thinning; "
        'never for "site" or multi-class problems',
    )
    test_share: Share = Field(0.25, description="share of the common test set, for data without an official one")
    holdout_share: Share = Field(
        0.2, description="share that each site holds out for evaluation; a hospital sets its own"
    )
    personal_test: bool = Field(
        False,
        description="evaluate each site on a part of the common test set with its class mix, not on held-out samples",
    )
    folds: Folds = Field(
        0, description="k-fold cross-validation within each site, without holdout-share and test-share; 0: off"
    )
    fold: Natural = Field(0, description="the held-out fold, from 0")
    data_seed: Seed = Field(-1, description="seed of partition, thinning and held-out splits; -1: the run's seed")
    label: str = Field(
        "label",
        description="label column of data-file, or of a site's table or labels.csv; for several labels, each 1, 0, -1 "
        "or blank, their columns separated by commas. Put a name with a comma into double quotes",
    )
    label_preset: Literal["", "chexpert", "torchxrayvision"] = Field(
        "", description="reads label columns as LibAUC (CheXpert) or TorchXRayVision do, instead of the next two keys"
    )
    uncertain: str = Field(
        "",
        description="meaning of -1 in label columns: ones, zeros, ignore (unknown), or label by label, as in "
        '"Edema=ones,zeros"; empty: refused',
    )
    blank: Literal["", "zeros", "ignore"] = Field(
        "",
        description="meaning of a blank in label columns; empty: refused. A column that is blank in all rows is a "
        "label that the site lacks",
    )
    standardise: bool = Field(
        True, description="standardise inputs by mean and deviation over all sites, which send sums and counts"
    )
    sampler: SamplerName = Field(
        "auto",
        description="auto: the problem's own; uniform: each sample once per epoch, a round starts a new epoch; "
        "fixed-positives: positives-per-batch positives in each batch",
    )
    positives_per_batch: Positive = Field(
        4, description="positives in each batch of fixed-positives; for auprc and partial-auc b, the outer samples"
    )
    augment_flip: bool = Field(False, description="mirror training images left-right with probability 1/2")
    augment_crop: Crop = Field(
        0.0,
        description="crop training images at random by up to this share of a side, up to 0.5, and resize them",
    )
    augment_rotate: Degrees = Field(
        0.0,
        description="rotate training images by up to this many degrees, up to 180; corners are filled with the "
        "training mean, or 0 without standardise",
    )
    augment_brightness: Fraction = Field(
        0.0, description="change brightness by up to this share, up to 1; values are clipped to 0 to 255"
    )

    # Differential privacy.
    dp_epsilon: Epsilon = Field(
        0.0,
        alias="dp.epsilon",
        description="ε of the whole run for each patient: noise at every site makes it so; 0: no differential privacy",
    )
    dp_delta: Delta = Field(1e-5, alias="dp.delta", description="δ of the whole run, below 1 / patients of a site")
    dp_clip: Clip = Field(
        0.0,
        alias="dp.clip",
        description="largest norm of a patient's gradient; a longer one is shortened to it; 0: the problem's own, 1 "
        "for cross-entropy",
    )
    dp_difference_clip: Clip = Field(
        0.0,
        alias="dp.difference-clip",
        description="that of a patient's difference of two gradients, which some algorithms take; 0: dp.clip",
    )

    secure_aggregation: bool = Field(
        False,
        description="the coordinator learns sums over all sites and nothing of one: the sites' replies are masked "
        "(a simulation sums the same numbers without masks); a run needs all of its sites in each round",
    )

    # Participation, timeouts and failures.
    sites: Sites = Field(8, description="K: number of sites")
    ticket: str = Field(
        "",
        description="what the study key has signed of this run, for sites that pin one; `edelweiss submit --study-key` "
        "sets it",
    )
    min_replies: Natural = Field(
        0,
        description="quorum: usable replies needed to start and in each round; 0: all sites. A round waits for every "
        "connected site (cdma: only for the quorum)",
    )
    wait_timeout: Seconds = Field(60.0, description="seconds to wait for sites to connect")
    round_timeout: Seconds = Field(3600.0, description="seconds that a round waits for a silent or disconnected site")
    approval_timeout: Seconds = Field(
        259200.0,
        description="seconds that a run waits for hospitals' operators to approve it, three days; with min-replies "
        "others it waits for round-timeout. Then it stops, and can be resumed",
    )
    on_bad_update: Literal["skip", "stop"] = Field(
        "skip", description="on NaN or infinity in a site's reply; if most sites send them, the run always stops"
    )
    aggregation: Literal["auto", "mean", "clipped", "trimmed-mean", "median"] = Field(
        "auto",
        description="how replies are averaged; clipped: those longer than outlier-multiple allows are shortened; "
        "trimmed-mean, median: coordinate by coordinate, each site counting once; auto: clipped where the algorithm "
        "averages, else mean",
    )
    outlier_multiple: Multiple = Field(
        MULTIPLE,
        description="a reply is an outlier, and named, if its norm times its weight is over this multiple of the "
        "sites' median; also the most that a weight is of the median one",
    )
    trimmed_share: Trimmed = Field(
        TRIM, description="share of the sites that trimmed-mean drops at either end of each coordinate"
    )
    loss_bound: Above0 = Field(
        1e6,
        description="a larger loss (saddle: distance) counts as divergence: at the coordinator or most sites it stops "
        "the run, a single site is left out",
    )

    # Computation.
    engine: Literal["flower", "local"] = Field(
        "flower",
        description="flower: simulation or deployment, as chosen for flwr run; local: processes of this machine",
    )
    workers: Workers = Field(
        0,
        description="processes of the local engine; 0: one per core and at most one per site, but a single one for a "
        "GPU or a short run",
    )
    threads: Threads = Field(1, description="threads of each process; the last bits of convolutions depend on it")
    stack: Natural = Field(
        1,
        description="clients that a process of the local engine trains vectorised, which is faster for many sites and "
        "a small network; 0 picks the group size; N caps it; 1: one after the other, bit-identical to other engines",
    )
    state_memory: Gigabytes = Field(
        0.0,
        description="GB of memory for the state of sites on the local engine; larger states are kept in temporary "
        "files; 0: half of the free memory",
    )
    device: str = Field("auto", description="auto | cpu | cuda | cuda:1")
    amp: Literal["", "bf16"] = Field(
        "",
        description="bf16: gradients in bfloat16 where that is safe and the device supports it; evaluations stay in "
        "float32",
    )
    matmul_precision: Literal["highest", "high"] = Field(
        "highest", description="matrix products of a GPU; high: TF32, faster, with three digits"
    )
    wire: Literal["float32", "bf16", "float16"] = Field(
        "float32", description="encoding of vectors with 256 or more entries in messages; float32: exact"
    )
    wire_estimators: Literal["", "int8"] = Field(
        "",
        description="int8: control variates and running estimates in 8 bits with error feedback",
    )
    bn: Literal["average", "local"] = Field(
        "average", description="batch-norm statistics: averaged over sites, or local to each"
    )

    # Evaluation and output.
    metrics: Words = Field(
        "",
        description="metrics from outside, functions of labels, scores and weights: module:name, or what an installed "
        "package offers, separated by commas",
    )
    evaluate_every: Natural = Field(1, description="rounds between evaluations; 0: only at the end")
    central_test: bool = Field(
        True, description='also evaluate on a common test set at the coordinator (not with dataset "site")'
    )
    evidence: bool = Field(
        True, description="write evidence.json at the end: intervals, calibration, curves; two classes only"
    )
    compare_with: str = Field(
        "",
        description="the model.safetensors or the folder of a run of the same network, to compare AUROCs on the same "
        "patients (DeLong, paired); empty: none",
    )
    checkpoint_every: Natural = Field(
        1,
        description="rounds between checkpoints; more where writing would take over 2 % of the time; 0: only the "
        "model, at the end",
    )
    tracker: Literal["", "tensorboard", "mlflow", "wandb"] = Field(
        "", description="logs each round's metrics to one of these; its package must be installed"
    )
    report: bool = Field(
        True,
        description="write report.html, curves, a model card and a TRIPOD+AI table at the end, which takes seconds",
    )
    runs_dir: str = Field("runs", description="folder of run folders")
    state_dir: str = Field(
        "",
        description="folder for the state and personal models of simulated sites (a hospital's operator sets its own); "
        "empty: a private temporary folder, deleted at the end of a run on the local engine",
    )
    share_model: bool = Field(
        False,
        description="each site keeps the final common model with a model card in its state-dir; with a personalised "
        "algorithm, its own model",
    )
    run_name: str = Field("", description="name of the run folder, unique; empty: time, algorithm and data set")
    started_by: str = Field("", description="who started the run; `edelweiss submit` and the dashboard set it")
    resume: str = Field(
        "",
        description="folder of an interrupted run to resume, with the keys of its config.toml",
    )
