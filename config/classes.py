"""Lists of classes in a run-config."""

from __future__ import annotations

import re


def parse_classes(text: str) -> tuple[int, ...]:
    """Parse a list of classes: ``"0,1,5-9"`` is (0, 1, 5, 6, 7, 8, 9); empty is ().

    Raises
    ------
    ValueError
        For anything else.
    """
    classes: dict[int, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        numbers = (first.strip(), last.strip() if dash else first.strip())
        if not all(re.fullmatch("[0-9]{1,4}", number) for number in numbers) or int(numbers[0]) > int(numbers[1]):
            raise ValueError('must list classes by number, up to 9999, as in "5,6,7" or "5-9"')
        classes |= dict.fromkeys(range(int(numbers[0]), int(numbers[1]) + 1))
    return tuple(classes)


def class_list(text: str) -> str:
    """Return the text, if `parse_classes` takes it."""
    parse_classes(text)
    return text
