"""Why a site does not answer; both messages may leave it."""


class RefusedError(ValueError):
    """This site will not do what it was asked to; the message may leave the site, or ``public`` in its place."""

    def __init__(self, text: str, public: str = "") -> None:
        super().__init__(text)
        self.public = public or text


class SiteError(RuntimeError):
    """Something broke at this site; the message may leave the site."""
