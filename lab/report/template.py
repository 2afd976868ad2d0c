"""The page of a report, in Jinja's language, and what its tables are made of; it refers to nothing outside itself."""

from __future__ import annotations

Rows = list[list[str]]
Table = tuple[list[str], Rows]
"""Heads and rows."""

STYLE = """
:root { color-scheme: light dark; --ink: #1a1c20; --soft: #5c626b; --line: #d9dce1; --paper: #ffffff; --tint: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa1ab; --line: #3a3f46; --paper: #16181c; --tint: #1e2126; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; color: var(--ink); background: var(--paper);
       font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; } a { color: inherit; }
details { margin: 1rem 0; border-top: 1px solid var(--line); }
summary { font-weight: 600; padding: .6rem 0; cursor: pointer; }
p, li { max-width: 46rem; } small, .soft, figcaption { color: var(--soft); } figcaption { font-size: .85rem; }
figure { margin: 0 0 1rem; } figure svg { width: 100%; height: auto; display: block; }
figure.narrow { max-width: 40rem; } .columns { columns: 24rem; column-gap: 2rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; align-items: start; }
.numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(12rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.numbers div { background: var(--tint); padding: .6rem .8rem; border-radius: .4rem; }
.numbers b { display: block; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; } .number { text-align: right; white-space: nowrap; }
.stopped { color: #b3261e; font-weight: 600; } code { font-size: .9em; }
@media print { body { max-width: none; padding: 0; font-size: 11px; } h2 { break-after: avoid; }
               figure, tr { break-inside: avoid; } }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ run.title }}</title>
<style>{{ style }}</style>
</head>
<body>
{% macro table(heads, rows, kind="number") %}
<div class="wide"><table><thead><tr>
{% for head in heads %}<th{% if not loop.first %} class="{{ kind }}"{% endif %}>{{ head }}</th>{% endfor %}
</tr></thead><tbody>
{% for row in rows %}<tr>
{%- for cell in row %}<td{% if not loop.first %} class="{{ kind }}"{% endif %}>{{ cell }}</td>{% endfor -%}
</tr>
{% endfor %}</tbody></table></div>
{% endmacro %}
{% macro picture(anchor, name, caption, kind="") %}
{% set name = anchor ~ "-" ~ name if anchor else name %}
{% if name in pictures %}<figure class="{{ kind }}">{{ pictures[name] }}
<figcaption>{{ caption }}</figcaption></figure>{% endif %}
{% endmacro %}
{% macro judged(part, level) %}
{% set at = part.anchor %}
{% if part.evidence %}
<section><{{ level }}>Telling positives from negatives</{{ level }}>
<div class="pair">
{{ picture(at, "roc", "Receiver operating characteristic. Band: 95 % intervals, point by point.") }}
{{ picture(at, "precision-recall", "Precision and recall. Dotted: the share of positives, which chance reaches.") }}
</div>
{{ picture(at, "forest", "AUROC of the final model, with 95 % intervals.", "narrow") }}
{% if part.points %}{{ table(part.point_heads, part.points) }}{% endif %}
</section>

<section><{{ level }}>Are the probabilities right?</{{ level }}>
<p>{{ part.probabilities }}</p>
<div class="pair">
{{ picture(at, "calibration", "Reliability: groups of patients by predicted probability. Bars: 95 % intervals.") }}
{{ picture(at, "net-benefit", "Decision curve: what treating by the model is worth, in true positives per patient.") }}
</div>
{{ table(part.calibration_heads, part.calibration_rows) }}
</section>

{% if part.compared %}<section><{{ level }}>Compared with the other model</{{ level }}>
<p class="soft">AUROC on the same patients; intervals and p-values (two-sided) by DeLong's test for pairs. Pooled,
pairs of patients of different sites count, too, which rewards telling sites apart.</p>
{{ table(["", "this model", "the other", "difference", "p"], part.compared) }}</section>{% endif %}
{% if part.subgroups %}<section><{{ level }}>Subgroups</{{ level }}>
<p class="soft">AUROC within sites, weighted by their pairs of patients. Sensitivity and specificity at one threshold
for all patients of a site, which leaves 90 % of its negatives below it. Groups that are too small are not told.</p>
{{ table(part.subgroup_heads, part.subgroups) }}</section>{% endif %}
{% endif %}
{% endmacro %}
<header>
<h1>{{ run.title }}</h1>
<p class="soft">{{ run.folder.name }} &middot;
<span{% if run.status.status | default("") != "complete" %} class="stopped"{% endif %}>
{{ run.status.status | default("unfinished") }}</span> since {{ run.status.since | default("-") }}
{% if run.status.reason is defined %}<br>{{ run.status.reason }}{% endif %}</p>
</header>

<section><h2>In short</h2>
<div class="numbers">{% for label, value, small in numbers %}
<div>{{ label }}<b>{{ value }}</b><small>{{ small }}</small></div>{% endfor %}
</div>
{% for note in notes %}<p>{{ note }}</p>{% endfor %}
</section>

<section><h2>Whose data</h2>
<p>{{ data }}</p>
{{ table(*sites) }}
<p class="soft">{{ site_note }}</p>
{% if run.data_warnings %}<p>What may be wrong with the data:</p>
<ul>{% for text in run.data_warnings %}<li>{{ text }}</li>{% endfor %}</ul>{% endif %}
{% if known[1] %}{{ table(*known) }}
<p class="soft">Positive training samples, of those of which the label is known. A dash: the site has no such label.</p>
{% endif %}
</section>

<section><h2>Training</h2>
{{ picture("", "curves", "The model after each round, on samples that no site trained on." ~ returned) }}
</section>

{% if parts %}
<section><h2>Label by label</h2>
{% if labels[0] %}
<div class="wide"><table><thead><tr>
{% for head in labels[0] %}<th{% if not loop.first %} class="number"{% endif %}>{{ head }}</th>{% endfor %}
</tr></thead><tbody>
{% for anchor, row in labels[1] %}<tr>
{%- for cell in row %}<td{% if not loop.first %} class="number"{% endif %}>
{%- if loop.first and anchor %}<a href="#{{ anchor }}">{{ cell }}</a>{% else %}{{ cell }}{% endif %}</td>{% endfor -%}
</tr>
{% endfor %}</tbody></table></div>
<p class="soft">Samples: those that the model was judged on and of which the label is known. {{ conservative }}</p>
{{ picture("", "labels", "AUROC of the final model for each label, with 95 % intervals.", "narrow") }}
{% endif %}
</section>
{% for part in parts %}
<details open id="{{ part.anchor }}"><summary>{{ part.label }}: {{ part.short }}</summary>
<p class="soft">All that follows is of the samples of which {{ part.label }} is known.
{% if part.anchor ~ "-curves" not in pictures %} The pictures are left out: there are too many labels.{% endif %}</p>
{{ table(*part.sites) }}
{{ picture(part.anchor, "curves", "The model after each round, on samples that no site trained on." ~ returned) }}
{{ judged(part, "h3") }}
</details>
{% endfor %}
{% endif %}
{{ judged(whole, "h2") }}
<section><h2>What it cost</h2>
{{ table(["", "whole run", "a round"], costs) }}
</section>

<section><h2>What left each site</h2>
{{ table(["when", "what"], left, "text") }}
<p class="soft">No sample, identifier or path is sent; a coordinator who wants to can still compute single patients'
rows from what is. Each site's own audit log lists every message:
<code>edelweiss-site audit</code>.</p>
</section>

<section><h2>Settings</h2>
<p class="soft">Every key of the run. <code>config.toml</code> in the run folder starts it again:
<code>edelweiss --run-config {{ run.folder.name }}/config.toml
{%- if run.config.run_name %} --run-config 'run-name=""'{% endif %}</code></p>
{{ table(["changed", "value", "default"], changed) }}
<p class="soft">{{ usual | length }} keys are at their defaults:</p>
<div class="columns">{% for key, value in usual %}<code>{{ key }} = {{ value }}</code><br>{% endfor %}</div>
</section>

<section><h2>Versions</h2>
{{ table(["package", "version"], versions) }}
</section>
</body>
</html>
"""
