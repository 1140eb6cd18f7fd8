"""Findings from night to night: what is new, what goes on, and what was looked at and is gone.

An episode is one finding for as long as it lasts. It ends in the night in which its check is fine
on that component; a night in which nobody looked ends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, insert, select, update

from preflight.check import FLEET
from preflight.history.ids import Rows, in_pieces
from preflight.history.night import LONGEST
from preflight.history.tables import BLAMED, EPISODES, TEXTS, VERDICTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection

    from preflight.history.night import Found, Night

_Key = tuple[str, str, int]
"""(check, component, fleet); fleet 0 for what is a node's or pair's own in whatever fleet."""


class Finds:
    """The episodes that have not ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._episodes = Rows(connection, EPISODES)
        self._verdicts = Rows(connection, VERDICTS)
        self._texts = Rows(connection, TEXTS)
        self._known_texts: dict[str, int] = {}
        still = select(EPISODES).where(EPISODES.c.closed_run.is_(None))
        self._open: dict[_Key, int] = {
            (row.check_id, row.about, row.fleet_id): row.id for row in connection.execute(still)
        }

    def take(self, night: Night, run: int, fleet: int, nodes: Mapping[str, int]) -> None:
        """Note what was found, and end what is mended."""
        self._learn_texts([_short(one.sentence) for one in night.found])
        self._close(night, run, fleet)
        goes_on: list[dict[str, object]] = []
        blamed: list[dict[str, int]] = []
        for one in night.found:
            text = self._known_texts[_short(one.sentence)]
            key = (one.check, one.about, fleet if _of_fleet(one) else 0)
            episode = self._open.get(key)
            if episode is None:
                episode = self._begin(key, one, run, text)
            else:
                goes_on.append({"episode": episode, "outcome": one.outcome, "text": text,
                                "run": run})  # fmt: skip
            number = self._verdicts.add(
                run_id=run,
                episode_id=episode,
                outcome=one.outcome,
                text_id=text,
                verdicts=one.verdicts,
            )
            blamed += [
                {"node_id": nodes[name], "verdict_id": number}
                for name in dict.fromkeys(one.nodes)
                if name in nodes
            ]
        self._episodes.write()
        if goes_on:
            self._connection.execute(_GOES_ON, goes_on)
        self._verdicts.write()
        if blamed:
            self._connection.execute(insert(BLAMED), blamed)

    def _begin(self, key: _Key, one: Found, run: int, text: int) -> int:
        check, about, fleet = key
        episode = self._episodes.add(
            check_id=check,
            about=about,
            fleet_id=fleet,
            outcome=one.outcome,
            text_id=text,
            first_run=run,
            last_run=run,
            times=1,
            closed_run=None,
        )
        self._open[key] = episode
        return episode

    def _close(self, night: Night, run: int, fleet: int) -> None:
        """End every episode whose component was judged tonight and is fine."""
        found = {(one.check, one.about) for one in night.found}
        ended: list[dict[str, int]] = []
        for key, episode in list(self._open.items()):
            check, about, own = key
            fine = night.fine.get(check)
            if fine is None or (check, about) in found or (own and own != fleet):
                continue
            # What is no node and no pair (an uplink): whoever looked at this fleet looked at it.
            if about in fine or (own and about != FLEET):
                ended.append({"episode": episode, "run": run})
                del self._open[key]
        if ended:
            self._connection.execute(_ENDS, ended)

    def _learn_texts(self, texts: list[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._known_texts]
        for piece in in_pieces(new):
            query = select(TEXTS).where(TEXTS.c.text.in_(piece))
            self._known_texts |= {row.text: row.id for row in self._connection.execute(query)}
        for text in new:
            if text not in self._known_texts:
                self._known_texts[text] = self._texts.add(text=text)
        self._texts.write()


_GOES_ON = (
    update(EPISODES)
    .where(EPISODES.c.id == bindparam("episode"))
    .values(
        outcome=bindparam("outcome"),
        text_id=bindparam("text"),
        last_run=bindparam("run"),
        times=EPISODES.c.times + 1,
    )
)

_ENDS = (
    update(EPISODES)
    .where(EPISODES.c.id == bindparam("episode"))
    .values(closed_run=bindparam("run"))
)


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= LONGEST else sentence[: LONGEST - 3] + "..."


def _of_fleet(one: Found) -> bool:
    """Whether it is about no node or pair in particular: another fleet's is another finding."""
    return one.about == FLEET or not one.own
