"""A site whose images are larger than its memory: what of them is in it, and how long steps wait for batches.

    python -m benchmarks.larger_than_memory FOLDER           # some 20 minutes, and 12 GB in the folder; or some of:
    python -m benchmarks.larger_than_memory FOLDER memory decode wait

The images are noise, 224 x 224, one channel, a byte for each pixel. All processes have one thread to compute with.

memory
    A site with 200,000 images that were decoded before (10 GB; the files that they came from are empty, and nobody
    looks into them). Its resident memory, at most, through a run's stages: the libraries, reading the folder, what the
    site tells (counts, moments), the hash of all its data, 200 batches of 32 that are drawn and changed while a thread
    reads ahead, an evaluation of 40,000 images. The model is linear, so that memory is the data's.
decode
    The same of a site that decodes its PNGs, of which there are more each time.
wait
    How long a step waits for its batch, with the thread and without: a gradient of `densenet121`, and a step in which
    the processor sleeps, as it does while a GPU computes. Files are taken out of the system's cache before each line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.scale import resident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from edelweiss.client_app.oracle import SiteOracle
    from edelweiss.config import RunConfig
    from edelweiss.datasets import DataConfig, DataSummary, ImageCache, Samples, SiteData
    from edelweiss.problems import Problem

COUNT, SIDE, BATCH, BLOCK = 200_000, 224, 32, 1000
AUGMENT = {"augment-flip": True, "augment-crop": 0.1, "augment-rotate": 15.0, "augment-brightness": 0.2}
JOB: dict[str, Any] = {"dataset": "site", "batch-size": BATCH, "device": "cpu"}


# ---------------------------------------------------------------------- the site's folder


def noise(count: int, seed: int) -> np.ndarray:
    """Return so many images."""
    return np.random.default_rng(seed).integers(0, 256, (count, 1, SIDE, SIDE), np.uint8)


def listed(folder: Path, count: int) -> list[Path]:
    """Write labels.csv, one image in ten positive, and return the places of its images."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number // BLOCK:03}/{number:06}.png" for number in range(count)]
    lines = [f"{name},{int(number % 10 == 0)}" for number, name in enumerate(names)]
    (folder / "labels.csv").write_text("\n".join(["path,label", *lines]) + "\n", encoding="utf-8")
    for name in names[::BLOCK]:
        (folder / name).parent.mkdir(exist_ok=True)
    return [folder / name for name in names]


def decoded_before(folder: Path) -> None:
    """Make a site whose images are all in its cache, if it is not there yet."""
    from edelweiss.datasets.image_file import ImageForm
    from edelweiss.datasets.memory_mapped import release_pages

    if (folder / "complete").exists():
        return
    files = {str(place): place.resolve() for place in listed(folder / "data", COUNT)}
    for place in files.values():
        place.touch()
    cache = cache_of(folder)
    place = cache.place(files, ImageForm())
    images = cache.make(place, (COUNT, 1, SIDE, SIDE))
    if images is None:
        sys.exit(f"{folder}: no room for 10 GB, and 1 GB to spare")
    for start in range(0, COUNT, BLOCK):
        images[start : start + BLOCK] = noise(BLOCK, start)
        release_pages(images)
    cache.keep(place, images, COUNT, [], list(files))
    (folder / "complete").touch()


def cache_of(folder: Path) -> ImageCache:
    """Return the site's cache of decoded images."""
    from edelweiss.datasets import ImageCache

    return ImageCache(folder / "state", 10**11)


def pngs(folder: Path, count: int) -> None:
    """Make a site with so many PNGs, none of them decoded."""
    from PIL import Image

    for number, place in enumerate(listed(folder / "data", count)):
        if not number % BLOCK:
            block = noise(BLOCK, number)
        Image.fromarray(block[number % BLOCK, 0]).save(place, compress_level=1)


def data_of(folder: Path, run: RunConfig) -> DataConfig:
    """Describe the site's data as `client_app.site` does."""
    return replace(run.data(str(folder / "data")), image_cache=cache_of(folder), key="00")


# ---------------------------------------------------------------------- memory


def stages(folder: Path) -> Iterator[str]:
    """Go through a run's stages at a site; yields what each was."""
    from edelweiss.client_app.process_cache import data_hash
    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts, load_site

    yield "libraries"
    run = RunConfig.parse(JOB | AUGMENT | {"model": "linear", "problem": "auc"})
    config = data_of(folder, run)
    data = load_site(config, 0, 1)
    yield f"the folder, {len(data.train) + len(data.held_out):,} images"
    facts = Facts.of(data, name="site", partition_id=-1, multiclass=False, standardise=True)
    yield "what it tells: counts, moments"
    data_hash(data)
    yield "the hash of its data"
    problem, data_summary = problem_and_cohort(run, facts)
    with closing(oracle_of(run, problem, data_summary.standardised(data.train))) as oracle:
        for _ in range(200):
            oracle.draw()
    yield "200 batches of 32, changed"
    problem.metrics(problem.initial()["x"], problem.initial()["y"], data_summary.standardised(data.held_out))
    yield f"an evaluation of {len(data.held_out):,}"


def problem_and_cohort(run: RunConfig, facts: Any) -> tuple[Problem, DataSummary]:
    """Return what a coordinator would make of this one site."""
    from edelweiss.datasets import DataSummary, standardisation

    shift, scale = (tuple(v.tolist()) for v in standardisation(facts.count, facts.total, facts.squares))
    data_summary = DataSummary(shape=facts.shape, prior=0.1, shift=shift, scale=scale)
    return run.build_problem(run.setting(data_summary, "cpu")), data_summary


def oracle_of(run: RunConfig, problem: Problem, samples: Samples) -> SiteOracle:
    """Open what deals the batches of a round."""
    from edelweiss.client_app.oracle import SiteOracle, stream

    return SiteOracle.open(run, problem, samples, stream(0, 0, 1, 0))


def memory(folder: Path) -> list[tuple[str, int, int]]:
    """Return, for each stage, its name, the resident memory after it, and the highest until then."""
    return [(stage, resident("VmRSS"), resident("VmHWM")) for stage in stages(folder)]


# ---------------------------------------------------------------------- waiting


def forget_files(folder: Path) -> None:
    """Take the decoded images out of the system's cache."""
    for place in (folder / "state").glob("*.npy"):
        with place.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def wait(folder: Path, step: str, thread: bool, augment: bool) -> tuple[float, float]:
    """Return the median seconds that a step waits for its batch, and those of all of it; the first does not count.

    ``step`` is ``"densenet121"``, or how many milliseconds the processor sleeps.
    """
    import torch

    from edelweiss.client_app import loader
    from edelweiss.config import RunConfig
    from edelweiss.datasets import Facts, load_site

    torch.set_num_threads(1)
    loader.SLOW = loader.SLOW if thread else 10**18
    computes = not step.isdigit()
    run = RunConfig.parse(JOB | (AUGMENT if augment else {}) | {"model": step if computes else "linear"})
    data: SiteData = load_site(data_of(folder, run), 0, 1)
    values = float(COUNT * SIDE**2)
    facts = Facts(shape=data.train.shape, count=(values,), total=(127.5 * values,), squares=(21717.5 * values,))
    problem, data_summary = problem_and_cohort(run, facts)
    start = problem.initial()
    forget_files(folder)
    waits, steps = [], []
    with closing(oracle_of(run, problem, data_summary.standardised(data.train))) as oracle:
        for _ in range(7 if computes else 40):
            began = time.perf_counter()
            batch = oracle.draw()
            waits.append(time.perf_counter() - began)
            if computes:
                oracle.gradient(start["x"], start.get("y"), batch)
            else:
                time.sleep(int(step) / 1000)
            steps.append(time.perf_counter() - began)
    return statistics.median(waits[1:]), statistics.median(steps[1:])


# ---------------------------------------------------------------------- the tables


def alone(folder: Path, measure: str, *arguments: object) -> Any:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.larger_than_memory", str(folder), "--only", measure]
    command += [json.dumps(arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def print_memory(folder: Path) -> None:
    """Measure and print a table."""
    decoded_before(folder / "large")
    print("| after | resident, MB | at most until then, MB |\n| --- | ---: | ---: |")
    for stage, now, most in alone(folder / "large", "memory"):
        print(f"| {stage} | {now / 1e6:,.0f} | {most / 1e6:,.0f} |", flush=True)


def print_decode(folder: Path) -> None:
    """Measure and print a table."""
    print("| PNGs | decoded, MB | resident, MB | at most, MB |\n| ---: | ---: | ---: | ---: |")
    for count in (1000, 5000, 20_000):
        pngs(folder / "png", count)
        _, now, most = alone(folder / "png", "memory")[1]
        print(f"| {count:,} | {count * SIDE**2 / 1e6:,.0f} | {now / 1e6:,.0f} | {most / 1e6:,.0f} |", flush=True)
        shutil.rmtree(folder / "png")


def print_wait(folder: Path) -> None:
    """Measure and print a table."""
    decoded_before(folder / "large")
    print("| step | augmentation | thread | waits, ms | step, ms | share |\n| --- | --- | --- | ---: | ---: | ---: |")
    for step in ("densenet121", "50", "100"):
        for augment in (False, True):
            for thread in (False, True):
                waits, whole = alone(folder / "large", "wait", step, thread, augment)
                name = f"sleeps {step} ms" if step.isdigit() else step
                cells = [name, "all" if augment else "none", "yes" if thread else "no"]
                cells += [f"{1e3 * waits:,.1f}", f"{1e3 * whole:,.0f}", f"{100 * waits / whole:.1f} %"]
                print(f"| {' | '.join(cells)} |", flush=True)


TABLES: dict[str, Callable[[Path], None]] = {"memory": print_memory, "decode": print_decode, "wait": print_wait}


def main() -> None:
    """Measure and print Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where there is room; what is made there stays")
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], help="what to measure; default: all")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure, arguments = options.only
        print(json.dumps({"memory": memory, "wait": wait}[measure](options.folder, *json.loads(arguments))))
        return
    for name in options.tables or TABLES:
        print(f"\n{name}\n")
        TABLES[name](options.folder)


if __name__ == "__main__":
    main()
