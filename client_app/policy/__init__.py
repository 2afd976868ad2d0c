"""The hospital's policy, which no run can change, enforced before anything is computed or sent."""

from edelweiss.client_app.policy.rules import Policy, PolicyError

__all__ = ["Policy", "PolicyError"]
