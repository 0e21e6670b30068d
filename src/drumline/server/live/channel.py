"""One channel of the live feed: its newest state, and what changed of late.

A state is a flat mapping of field names to JSON values. Each field is kept as JSON text, so that
every message is written once however many clients get it, and so that a publisher may change its
mapping afterwards. Who listens is not known here; see `hub`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from drumline.events import finite

NOTHING = 0  # the sequence number of a channel of which nothing is known


@dataclass(frozen=True)
class Delta:
    """The change from number `after` to number `seq`, as the text that clients get."""

    after: int
    seq: int
    text: str


class Channel:
    """The newest state and a ring of changes.

    Args:
        name: Its name.
        most: How many changes are kept at most.
        most_chars: How many characters of them are kept at most.
    """

    def __init__(self, name: str, *, most: int, most_chars: int) -> None:
        self.name = name
        self.seq = NOTHING
        self._most, self._most_chars = most, most_chars
        self._fields: dict[str, str] = {}
        self._ring: deque[Delta] = deque()
        self._ring_chars = 0
        self._snapshot: str | None = None

    def advance(self, state: Mapping[str, Any], seq: int) -> bool:
        """Take `state` as number `seq`, which is above all before; False if nothing differs."""
        fields = {name: as_json(value) for name, value in state.items()}
        changed = {name: text for name, text in fields.items() if self._fields.get(name) != text}
        removed = [name for name in self._fields if name not in fields]
        if self.seq != NOTHING and not changed and not removed:
            return False
        self._remember(Delta(self.seq, seq, self._delta(seq, changed, removed)))
        self.seq, self._fields, self._snapshot = seq, fields, None
        return True

    def snapshot(self) -> str:
        """The whole state as the text that clients get."""
        if self._snapshot is None:
            self._snapshot = (
                f'{{"type":"snapshot","channel":{as_json(self.name)},"seq":{self.seq},'
                f'"data":{_object(self._fields)}}}'
            )
        return self._snapshot

    def since(self, seq: int) -> list[str] | None:
        """The texts of all changes after number `seq`, or None where the ring has lost some."""
        if seq == self.seq:
            return []
        for back, delta in enumerate(reversed(self._ring), start=1):
            if delta.after == seq:
                return [kept.text for kept in islice(self._ring, len(self._ring) - back, None)]
        return None

    def _delta(self, seq: int, changed: dict[str, str], removed: list[str]) -> str:
        unset = f',"unset":{as_json(removed)}' if removed else ""
        return (
            f'{{"type":"delta","channel":{as_json(self.name)},"after":{self.seq},"seq":{seq},'
            f'"set":{_object(changed)}{unset}}}'
        )

    def _remember(self, delta: Delta) -> None:
        self._ring.append(delta)
        self._ring_chars += len(delta.text)
        while len(self._ring) > self._most or self._ring_chars > self._most_chars:
            self._ring_chars -= len(self._ring.popleft().text)


def as_json(value: Any) -> str:
    """`value` as compact JSON; numbers that are not finite as text."""
    return json.dumps(finite(value), separators=(",", ":"))


def nothing(name: str) -> str:
    """The snapshot of a channel of which nothing is known: its device or training is not there."""
    return f'{{"type":"snapshot","channel":{as_json(name)},"seq":{NOTHING},"data":null}}'


def resumed(name: str, seq: int) -> str:
    """The answer to a subscription that goes on after number `seq`."""
    return f'{{"type":"resumed","channel":{as_json(name)},"seq":{seq}}}'


def _object(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{as_json(name)}:{text}" for name, text in fields.items()) + "}"
