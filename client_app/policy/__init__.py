"""The hospital's policy, which no run can change, enforced before anything is computed or sent.

A new rule is a field of `rules.Policy`, a `rules.Secret` if its value may not be logged. What its check needs decides
where it goes: the run-config, `Policy.objections`; the data, once a run is approved, at every message,
`admission._require_enough`, or at the first one, `admission._require_safe`; a reply's cost, `limits`; the reported
numbers, `suppression` and `coarsening`. `preview` shows the operator what a run would do here.
"""

# No rule of a policy changes this: whoever chooses the models and the batches' size solves for the rows.
TRUST = "The coordinator can compute single patients' rows from what you send. Join only if you trust it with them."
