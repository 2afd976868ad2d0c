"""Lists of words in a run-config."""

from __future__ import annotations


def parse_words(text: str) -> tuple[str, ...]:
    """Parse a list of words: ``"AP, PA"`` is ("AP", "PA"); empty is ().

    Raises
    ------
    ValueError
        When one is empty, or twice in the list, in whatever case.
    """
    words = tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    if not all(words) or len({word.casefold() for word in words}) < len(words):
        raise ValueError('must list words, each once, as in "AP,PA"')
    return words


def word_list(text: str) -> str:
    """Return the text, if `parse_words` takes it."""
    parse_words(text)
    return text
