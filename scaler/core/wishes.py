"""What somebody else wants of a fleet's size, where somebody else writes it: a person, or the HPA for another trigger.

Under `resizedBy: Keda` the workload's replicas follow the totals that we publish, and others may raise them: somebody with
kubectl, the HPA for another trigger of its ScaledObject. The total follows such a wish, or the HPA would take the seats away
again at its next sync. Reading back our own totals would run away, so a wish has to be both:

above    all that was published for as long as the HPA may still act on it: its window for scaling down and one sync
a rise   there were fewer replicas when they were last seen

Replicas that merely stay above what is published are no wish. Whoever writes them keeps them there by himself: the HPA's
`minReplicas`, its tolerance, or a window and rates slower than its defaults. Following those would keep a fleet at its peak
for ever, since each time that we publish more, the HPA holds on to that for another window.

A wish holds for as long as a total does before it may fall, and then lapses.
"""

import math
from dataclasses import field, replace
from typing import Final

from scaler.core.values import frozen
from scaler.core.windows import Mark, Maxima

HPA_DOWN_WINDOW_SECONDS: Final = 300.0
"""How long the HPA acts on a total that has fallen since: the default of `behavior.scaleDown.stabilizationWindowSeconds`
(kubernetes.io, Horizontal Pod Autoscaling, "Default behavior")."""
HPA_SYNC_SECONDS: Final = 15.0
"""How often it looks: the default of `--horizontal-pod-autoscaler-sync-period` (kubernetes.io, the same page)."""
FOLLOWED_SECONDS: Final = HPA_DOWN_WINDOW_SECONDS + HPA_SYNC_SECONDS
"""For how long replicas may still be what was published once."""


def holds(window: float) -> float:
    """Return for how long a wish holds: as a total does before it may fall, and one sync at least, so that the HPA sees it."""
    return max(window, HPA_SYNC_SECONDS)


@frozen(kw_only=True)
class Wishes:
    """What was published of a fleet's size of late, and what others wished for last.

    Attributes:
        published: totals that the HPA may still act on.
        raised: the last wish, and when it was found; None if there never was one.
    """

    published: Maxima = field(default_factory=Maxima)
    raised: Mark | None = None

    def publish(self, now: float, total: int) -> "Wishes":
        """Return this with a total that is published at `now`: from now on, or until now."""
        return replace(self, published=self.published.add(now, total, FOLLOWED_SECONDS))

    def pause(self, now: float) -> "Wishes":
        """Return this for a moment at which nobody knows the replicas: what the HPA may act on stays as it is."""
        return replace(self, published=Maxima((Mark(now, self.published.highest),)))

    def look(self, now: float, before: int, replicas: int) -> "Wishes":
        """Return this with a look at the replicas; call it before `publish`.

        A rise may have happened at any time since the last look, so what the HPA could act on then counts.

        Args:
            now: the time.
            before: what they were when they were last seen, or the last total if that was more.
            replicas: what they are.
        """
        if replicas > max(before, self.published.highest):
            return replace(self, raised=Mark(now, replicas))
        return self

    def until(self, window: float) -> float:
        """Return when the last wish lapses; minus infinity if there was none.

        Args:
            window: seconds for which a total holds before it may fall.
        """
        return -math.inf if self.raised is None else self.raised.at + holds(window)

    def at(self, now: float, window: float) -> int:
        """Return the seats that others wish for at `now`; 0 for none."""
        return self.raised.value if self.raised is not None and now < self.until(window) else 0


NO_WISHES: Final = Wishes()
