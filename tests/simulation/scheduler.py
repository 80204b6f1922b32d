"""One player runs at a time, and one seeded random number generator decides which.

Between two calls of :meth:`Scheduler.step` only the player whose turn it is runs, so a history is a function of its
seed. Players are greenlets in one thread: a turn costs a microsecond; between threads it would cost some twenty.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from greenlet import getcurrent, greenlet


class Stopped(KeyboardInterrupt):
    """The history is over: the player must leave."""


class Killed(KeyboardInterrupt):
    """The process died here. No border takes this for an error of users' code."""


@dataclass
class Faults:
    """The probability of each accident in a step."""

    killed: float = 0.0
    paused: float = 0.0
    lost_before: float = 0.0
    lost_after: float = 0.0
    late: float = 0.0
    unavailable: float = 0.0
    unopened: float = 0.0

    def none(self) -> None:
        self.killed = self.paused = self.lost_before = self.lost_after = self.late = 0.0
        self.unavailable = self.unopened = 0.0


class _Player(greenlet):
    def __init__(self, name: str, live: Callable[[], None]) -> None:
        super().__init__(live)
        self.name = name
        self.asleep_until = 0
        self.frozen = self.gone = False


class Scheduler:
    """
    :param max_steps: a history that takes more is stopped, with the verdict that it made no progress.
    """

    def __init__(self, seed: int, faults: Faults, *, max_steps: int) -> None:
        self.random = random.Random(seed)
        self._luck = self.random.random
        self.restless = self.random.choice((0.15, 0.4, 1.0))
        self.faults = faults
        self.steps = 0
        self.out_of_steps = False
        self._max_steps = max_steps
        self._players: list[_Player] = []
        self._errors: list[BaseException] = []
        self._stopping = False

    # ---- for the players -----------------------------------------------------------------------------------------

    def step(self, *, safe: bool = False) -> None:
        """Perhaps let somebody else go on; perhaps sleep or die here, unless it is `safe`.

        :raises Killed: the process that the caller plays dies here.
        """
        me = getcurrent()
        if not isinstance(me, _Player):
            return  # outside of a history: the checker reads undisturbed
        self.steps += 1
        if self.steps > self._max_steps:
            self.out_of_steps = self._stopping = True
        if self._stopping:
            raise Stopped
        if not safe:
            if self._luck() < self.faults.killed:
                raise Killed
            if self._luck() < self.faults.paused:
                me.asleep_until = self.steps + self.random.choice((5, 20, 60, 200))
            elif self._luck() > self.restless:
                return  # some bugs need many steps by one player, others need many turns
        self._pass_on(me)

    def doze(self, steps: int) -> None:
        """Sleep here for this number of steps."""
        me = getcurrent()
        if isinstance(me, _Player):
            me.asleep_until = self.steps + steps
            self._pass_on(me)

    def freeze(self, name: str, *, frozen: bool) -> None:
        """Take a player out of the game, or let it in again: a zombie that sleeps longer than everything else."""
        for player in self._players:
            if player.name == name:
                player.frozen = frozen

    def others_at_work(self) -> bool:
        """Is anybody but the caller still playing, and not frozen?"""
        me = getcurrent()
        return any(not player.gone and not player.frozen and player is not me for player in self._players)

    # ---- for the one who starts it -------------------------------------------------------------------------------

    def play(self, bodies: dict[str, Callable[[], None]]) -> None:
        """Run the bodies to their end, one step of one of them at a time.

        :raises Exception: the one that a body raised.
        """
        self._players = [_Player(name, partial(self._live, body)) for name, body in bodies.items()]
        following: _Player | None = self._players[0]
        while following is not None:  # a player that has ended returns here
            following.switch()
            following = self._next()
        if self._errors:
            raise self._errors[0]

    def _live(self, body: Callable[[], None]) -> None:
        me = getcurrent()
        assert isinstance(me, _Player)
        try:
            body()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by `play`
            self._errors.append(error)
            self._stopping = True
        me.gone = True

    def _pass_on(self, me: _Player) -> None:
        following = self._next()
        if following is me or following is None:
            return
        following.switch()
        if self._stopping:
            raise Stopped

    def _next(self) -> _Player | None:
        if self._stopping:
            return next((player for player in self._players if not player.gone), None)
        playing = [player for player in self._players if not player.gone and not player.frozen]
        awake = [player for player in playing if player.asleep_until <= self.steps]
        if awake:
            return self.random.choice(awake)
        if not playing:
            return next((player for player in self._players if not player.gone), None)
        first = min(playing, key=lambda player: player.asleep_until)
        self.steps = first.asleep_until
        return first
