"""All nodes of a group were booted from one image; the majority names the odd ones."""

from __future__ import annotations

from preflight.check import Check
from preflight.checks.fleet_view import FleetView
from preflight.facts import Facts, Group
from preflight.verdict import Conclude, Verdict, fail, ok, unknown

CHECK = Check("site.same_image", stage="facts", requires=("reach.answer",))


def image(facts: Facts) -> str | None:
    """Return the image that a node says it runs; None where it does not know."""
    said = facts.section("site.image")
    return None if said.error else said.data["version"]


def judge(groups: list[Group]) -> Verdict:
    """Condemn whoever differs from most of its group; without a majority nobody is named."""
    odd: dict[str, str] = {}
    for group in groups:
        images = {name: image(facts) for name, facts in group.facts.items()}
        silent = [name for name, version in images.items() if version is None]
        if silent:
            return unknown(
                f"{', '.join(silent)} of {group.name} cannot say its image",
                advice="look at /etc/site-image there",
                culprits=silent,
            )
        usual = group.majority(image)
        if usual is None or len(set(images.values())) == 1:
            continue
        if not usual.decides:
            return fail(
                f"{group.name} runs {len(set(images.values()))} images, none of them on most nodes",
                advice="boot the group from one image",
            )
        odd |= {name: str(seen) for name, seen in images.items() if seen != usual.value}
    if odd:
        return fail(
            f"booted from {', '.join(sorted(set(odd.values())))}, unlike most of the group",
            advice="reboot from the group's image",
            culprits=odd,
            images=odd,
        )
    return ok(f"{len(groups)} groups, one image each")


def test_site_same_image(preflight_fleet: FleetView, conclude: Conclude) -> None:
    """Joins the whole fleet and the judgement."""
    conclude(judge(list(preflight_fleet.groups.values())))
