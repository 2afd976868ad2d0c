"""Why a site does not answer; both messages may leave it."""


class RefusedError(ValueError):
    """This site will not do what it was asked to; the message may leave the site."""


class SiteError(RuntimeError):
    """Something broke at this site; the message may leave the site."""
