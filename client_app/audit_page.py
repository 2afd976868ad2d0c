"""The audit log as a page to be printed: of each run what would leave, who decided, and all lines; signed if wanted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from jinja2 import Environment, StrictUndefined

from edelweiss.client_app.policy.advance import advances
from edelweiss.federation.seals import key_hash
from edelweiss.federation.signature import signed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from edelweiss.client_app.policy.advance import Advance
    from edelweiss.client_app.policy.records import Records

TIME, WAY, SAID = 0, 1, -1  # cells of a line


def audit_page(
    rows: Mapping[str, Sequence[tuple[str, ...]]],
    columns: Sequence[str],
    records: Records,
    head: tuple[int, str],
    *,
    site: str = "",
    key: EllipticCurvePrivateKey | None = None,
) -> bytes:
    """Return the page, in UTF-8.

    Parameters
    ----------
    rows : mapping of str to sequence of tuple
        The lines by run, as `commands.audit.read_into` returns them; the run "" is the operator.
    columns : sequence of str
        Their columns.
    records : Records
        Of the site.
    head : tuple of int and str
        The number of lines of the verified log, and the hash of the last.
    site : str
        The site's name; empty: not said.
    key : EllipticCurvePrivateKey, optional
        The site's, which signs the page.

    Raises
    ------
    ConfigError
        If a record of the site is damaged.
    """
    known = {each.number: each for each in advances(records)}
    parts = []
    for run, lines in rows.items():
        record = records.run(run) if run.isdecimal() else None
        decided = [(line[TIME], line[SAID]) for line in lines if line[WAY] in ("act", "rule")]
        advance = known.get(record.advance) if record else None
        said = _in_words(advance) if advance else ""
        parts.append({"run": run, "lines": lines, "record": record, "decided": decided, "advance": said})
    page = _TEMPLATE.render(
        parts=parts,
        columns=columns,
        head=head,
        site=site,
        key=key_hash(key.public_key()) if key else "",
        now=_when(time.time()),
    ).encode(errors="replace")
    return signed(page, key) if key else page


def _in_words(advance: Advance) -> str:
    """Return a decision in advance as a line."""
    said = f"decision {advance.number} in advance, {advance.decision} by {advance.by}: {advance.in_words()}"
    said += f"; {advance.comment}" if advance.comment else ""
    said += f"; withdrawn {advance.withdrawn}" if advance.withdrawn else ""
    return f"{_when(advance.made)}: {said}"


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


_TEMPLATE = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
).from_string("""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>Audit log{{ ' of ' ~ site if site }}</title>
<style>:root { color-scheme: light dark } body { font: 14px sans-serif; margin: 2em; overflow-wrap: anywhere }
td, th { text-align: left; vertical-align: top;
padding: 2px 8px; border-bottom: 1px solid #ccc; white-space: pre-wrap; overflow-wrap: anywhere }
dt { font-weight: bold; margin-top: .3em } h2 { margin-top: 2em } .wide { overflow-x: auto }</style>
</head><body><main>
<h1>Audit log{{ ' of ' ~ site if site }}</h1>
<p>Written {{ now }} from a verified log of {{ '{:,}'.format(head[0]) }} lines.
{% if head[1] %}
The hash of the last one is {{ head[1] }}.
{% endif %}
{% if key %}
Signed at the end of this file, by the site's key with the SHA-256 {{ key }}.
{% else %}
Not signed.
{% endif %}
</p>
{% for part in parts %}
<h2>{{ 'Run ' ~ part.run if part.run else 'The operator' }}</h2>
{% if part.record %}
<h3>What leaves the site</h3>
<dl>{% for name, text in part.record.shown.items() %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
<h3>Who decided</h3>
<ul>
{% for at, text in part.decided %}<li>{{ at }}: {{ text }}</li>
{% else %}<li>Nobody yet.</li>
{% endfor %}
{% if part.advance %}<li>{{ part.advance }}</li>
{% endif %}
</ul>
<h3>All lines</h3>
{% endif %}
<div class="wide" tabindex="0"><table>
<thead><tr class="head">{% for name in columns %}<th>{{ name or 'way' }}</th>{% endfor %}</tr></thead><tbody>
{% for line in part.lines %}
<tr>{% for cell in line %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endfor %}
</main></body></html>
""")
