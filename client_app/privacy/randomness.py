"""Random numbers that follow from a secret and the whole question, so that nobody outside the site can repeat them.

The coordinator knows the run's seed: with samples that follow from it, an attacker subtracts what is known. So whom a
batch holds, and the noise, come from a key that depends on a secret of the site and on everything that the answer
depends on. The same question has the same answer; another one has independent noise, so that no two answers can be
subtracted. AES-256 in counter mode expands the key: PyTorch's generators use 32 bits of a seed, which can be searched.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from edelweiss.config.plug_ins import packages_of
from edelweiss.config.resume import FREE
from edelweiss.federation.fingerprint import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray
    from torch import Tensor

    from edelweiss.config import RunConfig
    from edelweiss.federation import RoundContext
    from edelweiss.problems import Arrays, Problem

UNASKED = FREE - {"threads", "device"}
"""Keys that no answer depends on, not even its rounding."""

KERNELS = ("ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "MKL_", "NVIDIA_TF32", "ONEDNN_")
"""How the names of environment variables begin that choose how numbers are multiplied."""

_WORDS = 624  # of the Mersenne Twister's state
_STATE = slice(24, 24 + 8 * _WORDS)  # of a CPU generator's: seed, two ints and a place come first


def derived(secret: bytes, purpose: str, parts: Iterable[bytes] = ()) -> bytes:
    """Return the key of a purpose and its parts: HMAC-SHA256, every part with its length."""
    mac = hmac.new(secret, digestmod=hashlib.sha256)
    for part in (purpose.encode(), *parts):
        mac.update(len(part).to_bytes(8, "little"))
        mac.update(part)
    return mac.digest()


def question(
    run: RunConfig, lasting: object, data: str, context: RoundContext, sent: Arrays, memory: Arrays
) -> list[bytes]:
    """Return all that an answer depends on: release and plug-ins, run, data, place in the run, message and memory.

    ``lasting`` is what a message says that stays the same for a run, and ``data`` a hash of the site's data, or which
    they are and where they are used.
    """
    keys = [(key, value) for key, value in sorted(run.written().items()) if key not in UNASKED]
    said = fingerprint(packages_of(run.flat())), repr(keys), repr(lasting), data, f"{context.round} {context.phase}"
    return [*(text.encode() for text in said), digest_of(sent), digest_of(memory)]


def rounding(device: str) -> str:
    """Return what decides how this machine rounds: PyTorch's build, threads, the processor, GPUs, settings of theirs.

    A model can let rounding decide a gate. Where it may differ the same question is another one, whose answer has noise
    of its own and is paid for: two answers with the same noise could be subtracted.
    """
    return f"{_machine(device)} {torch.get_num_threads()} threads"


@cache
def _machine(device: str) -> str:
    file, settings = Path("/proc/cpuinfo"), sorted(item for item in os.environ.items() if item[0].startswith(KERNELS))
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
    kind = sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU "))})
    gpus = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())] if device != "cpu" else []
    processor = (platform.machine(), platform.processor(), kind)
    said = repr((torch.__version__, torch.__config__.show(), processor, gpus, settings))
    return hashlib.sha256(said.encode()).hexdigest()


def with_statistics(sent: Arrays, problem: Problem) -> Arrays:
    """Return vectors with the statistics that the network holds, on which an answer depends as well."""
    return {**sent, "buffers": statistics} if (statistics := problem.buffers()).numel() else sent


def digest_of(arrays: Arrays) -> bytes:
    """Return a hash of named vectors: names, types, shapes and values."""
    found = hashlib.sha256()
    for name, vector in sorted(arrays.items()):
        values = vector.detach().cpu().contiguous().numpy()
        found.update(repr((name, values.dtype.str, values.shape)).encode())
        found.update(values.tobytes())
    return found.digest()


class KeyedStream:
    """An endless stream of random numbers from a key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._key = key
        self._keystream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return uniform numbers of 64 bits, shape (count,)."""
        return np.frombuffer(self._keystream.update(bytes(8 * count)), "<u8")

    def chosen(self, count: int, rate: float) -> Tensor:
        """Return which of so many are chosen, each with probability ``rate`` in steps of 2^-53; int64, ascending."""
        draws = self.words(count) >> np.uint64(11)
        return torch.from_numpy(np.flatnonzero(draws < np.uint64(math.ceil(rate * 2.0**53))))

    def normal(self, count: int, deviation: float = 1.0) -> Tensor:
        """Return normal numbers around 0, float64, shape (count,), by Box and Muller.

        Two words make a number. The inverse of the distribution at one of 53 bits would be faster, but leaves holes on
        the grid of noised sums beyond 6.6 deviations, and a sum of 10^5 numbers has such a one in 250,000 answers.
        """
        pairs = (count + 1) // 2
        uniform = torch.from_numpy((self.words(2 * pairs) >> np.uint64(11)) * 2.0**-53)
        radius = uniform[:pairs].add_(2.0**-53).log_().mul_(-2 * deviation**2).sqrt_()
        angle, found = uniform[pairs:].mul_(2 * math.pi), uniform.new_empty(2, pairs)
        torch.cos(angle, out=found[0])
        torch.sin(angle, out=found[1])
        return found.mul_(radius).view(-1)[:count]

    def generator(self, purpose: str) -> torch.Generator:
        """Return a generator of PyTorch, on the CPU, all of whose state follows from the key and a purpose."""
        stream = KeyedStream(derived(self._key, purpose))
        generator = torch.Generator().manual_seed(int(stream.words(1)[0]) >> 1)
        state = generator.get_state().numpy()
        state[_STATE] = (stream.words(_WORDS) & np.uint64(0xFFFFFFFF)).view(np.uint8)
        return generator.set_state(torch.from_numpy(state))
