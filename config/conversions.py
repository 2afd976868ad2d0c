"""Well-known conversions of units, by which two hospitals' ranges of one column may differ.

Factors of weight, length, pressure and temperature are those of NIST SP 811, appendix B.8 (2008); those of laboratory
values follow from molar masses, as in the AMA Manual of Style, 11th edition, section 17.5 (2020).
"""

from __future__ import annotations

from math import inf, log
from typing import NamedTuple

Range = tuple[float, float]


class Conversion(NamedTuple):
    """``larger = factor * smaller + offset``."""

    factor: float
    units: str
    offset: float = 0.0

    def __str__(self) -> str:
        return f"{self.units} do (x {self.factor:g}{f' + {self.offset:g}' * bool(self.offset)})"


CONVERSIONS = (
    Conversion(1.8, "degrees Celsius and Fahrenheit", 32.0),
    Conversion(2.2046, "kg and lb"),
    Conversion(2.54, "inches and cm"),
    Conversion(7.5006, "kPa and mmHg"),
    Conversion(10.0, "g/dL and g/L, or cm and mm"),
    Conversion(12.0, "years and months"),
    Conversion(17.104, "bilirubin's mg/dL and µmol/L"),
    Conversion(18.016, "glucose's mmol/L and mg/dL"),
    Conversion(38.67, "cholesterol's mmol/L and mg/dL"),
    Conversion(88.42, "creatinine's mg/dL and µmol/L"),
    Conversion(100.0, "shares and percentages, or m and cm"),
    Conversion(365.25, "years and days"),
    Conversion(1000.0, "units with and without milli or kilo"),
)
MIDDLE, END = 1.12, 1.4  # by what the ratio of middles, and that of ends, may be off: hospitals differ, drafts round
SHARE, ROUNDED = 0.2, 0.05  # of a range, and of its end, by which the ends may be off where there is an offset
MOST = 2  # conversions that are named, the likelier first


def suspected(first: Range, second: Range) -> str:
    """Return by which conversions one range would be the other, in words; empty if there is none.

    Parameters
    ----------
    first, second
        Lowest and highest value.
    """
    small, large = sorted((first, second), key=lambda one: one[1])
    fitting = sorted((off, place) for place, one in enumerate(CONVERSIONS) if (off := _off(one, small, large)) <= 1)
    return " or as ".join(str(CONVERSIONS[place]) for _, place in fitting[:MOST])


def _off(one: Conversion, small: Range, large: Range) -> float:
    """Return how badly a conversion explains the difference: up to 1 is well enough."""
    pairs = [*zip(small, large, strict=True)]
    if one.offset:
        most = SHARE * (large[1] - large[0]) + ROUNDED * abs(large[1])
        return max(abs(one.factor * a + one.offset - b) for a, b in pairs) / most if most > 0 else inf
    if min(*small, *large) <= 0:
        return inf
    ends = [log(b / a / one.factor) for a, b in pairs]  # whose mean is that of the ranges' geometric middles
    return max(abs(sum(ends) / 2) / log(MIDDLE), *(abs(end) / log(END) for end in ends))
