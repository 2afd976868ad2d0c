"""Errors of a site, whose messages may leave it."""


class RefusedError(ValueError):
    """The site refuses a request; the message, or ``public`` in its place, may leave the site."""

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self.public = public or text


class AwaitsApprovalError(Exception):
    """The site's operator has not decided about the run yet: the coordinator asks again."""


class SiteError(RuntimeError):
    """Something broke at this site; the message may leave the site."""
