"""What the hospital's page and the coordinator's page share: people and passwords, sessions, the frame of a page.

A page is a list of routes, made with `view`, `act` and `public`, and a folder of templates that extend
``frame.html``; `application` joins them to a Starlette app, and `serve` answers at a loopback address or a Unix socket.
Every response has a Content-Security-Policy without inline scripts and styles: set classes, not ``style`` attributes.
"""

from edelweiss.web.accounts import Account, Accounts, AccountsError
from edelweiss.web.page import Page, PageError, act, application, public, render, view
from edelweiss.web.server import address_of, listen, serve, url_of

__all__ = [
    "Account",
    "Accounts",
    "AccountsError",
    "Page",
    "PageError",
    "act",
    "address_of",
    "application",
    "listen",
    "public",
    "render",
    "serve",
    "url_of",
    "view",
]
