"""The hospital's own rules: no run can change them, and they are enforced before anything is computed or sent."""

from edelweiss.client_app.policy.rules import Policy, PolicyError

__all__ = ["Policy", "PolicyError"]
