"""Hypothesis profiles: how many examples a property tries, and how much of a head's weights is drawn.

Importing this registers them.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

# No shrink phase: failing cases are cut down by the suite's own reducer, which knows what a row is. Hypothesis' own
# clock limits would call a slow machine a failure.
_COMMON = dict(
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=tuple(HealthCheck),
    print_blob=False,
)
PROFILES = {"dev": 6, "ci": 30, "nightly": 300}
# A head's weights, beyond which its hidden size is reduced: the vocabulary, and all that depends on it, stays real.
WEIGHT_BYTES = {"dev": 16 << 20, "ci": 64 << 20, "nightly": None}
for _name, _examples in PROFILES.items():
    settings.register_profile(_name, settings(max_examples=_examples, **_COMMON))  # type: ignore[arg-type]
