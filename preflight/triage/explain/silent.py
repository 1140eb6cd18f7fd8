"""What is said where the lines tell of no failure, and why they do not."""

from __future__ import annotations

from preflight.triage.explain.model import Explanation

NOTHING = Explanation(
    category="unknown",
    culprits=(),
    sentence="nothing in these lines tells of a failure that is known here",
    advice="give the logs of all ranks from start to end; let the next run leave more: "
    "preflight watch -- torchrun --log-dir DIR --redirects 3 ...",
    evidence=(),
    confidence=0.0,
)
EMPTY = Explanation(
    category="unknown",
    culprits=(),
    sentence="there are no lines in what was given: it is empty",
    advice="look whether the output went elsewhere (srun --output, torchrun --log-dir, "
    "kubectl logs --previous); let the next run leave more: preflight watch --tee -- torchrun ...",
    evidence=(),
    confidence=0.0,
)
UNREAD = Explanation(
    category="unknown",
    culprits=(),
    sentence="no line of what was given could be read",
    advice="give the files as the job wrote them, or copy them again",
    evidence=(),
    confidence=0.0,
)
ENDED = Explanation(
    category="unknown",
    culprits=(),
    sentence="the job came to its end: it says so after all that looks like a failure",
    advice="if another job is meant, give its log; if it was slow: pytest --preflight "
    "--preflight-tier=standard",
    evidence=(),
    confidence=0.0,
)
