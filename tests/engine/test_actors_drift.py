"""How far actors and learner drift apart: ticks in the queue, and the age of weights."""

from __future__ import annotations

import multiprocessing
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from dreamlab.engine.actors import collector as collector_module
from dreamlab.engine.actors.local import _answer
from dreamlab.engine.actors.transport import Event
from dreamlab.engine.actors.worker import Request
from dreamlab.engine.observer import Observer
from tests.engine.inline_actors import Inline, put_inline
from tests.engine.test_actors import SAC
from tests.helpers import metrics, open_loop

TWO = ("actors.num=2", "env.num_envs=2")
QUEUE = 16
SLOW = (
    "env.id=slow", "env.options={seconds: 0.004, length: 5}", "actors.block_s=0.004",
    "actors.block_ticks=4", f"actors.queue_ticks={QUEUE}",
)  # fmt: skip


class Ahead(Inline):
    """Its actors can do everything that they were asked for before somebody waits for it."""

    def __init__(self, make):
        super().__init__(make)
        self.done: deque[list[tuple[int, Event]]] = deque()

    def run_ahead(self) -> None:
        while events := super().events(0.0):
            self.done.append(events)

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        if self.done:
            return self.done.popleft()
        return super().events(timeout_s) if timeout_s else []


class Busy(Observer):
    """After each collection the learner is so busy that actors do all that they were asked for."""

    def __init__(self, collector, transport):
        self.collector, self.transport = collector, transport
        self.ahead: list[int] = []

    def after(self, action):
        if action != "collect":
            return
        self.transport.run_ahead()
        waiting = [s.ticks for s in self.collector.streams]
        for index, block in (e for events in self.transport.done for e in events):
            waiting[index] += block.ticks
        self.ahead += waiting


@pytest.mark.parametrize("collect_ticks", [1, 8])
def test_slow_actors_fill_the_queue_while_the_learner_is_busy_and_no_more(tmp_path, collect_ticks):
    """A block is cut after one tick here: the queue is bounded by ticks, not by blocks."""
    options = (*SLOW, f"training.phases.1.collect_ticks={collect_ticks}")
    loop = open_loop(tmp_path / "r", *SAC, *TWO, *options)
    collector, inline = put_inline(loop)
    collector.transport = transport = Ahead(inline.make)
    busy = Busy(collector, transport)
    loop.observers.add(busy)
    reserved, ask = [], transport.ask

    def noted(index, request, blocks):
        ask(index, request, blocks)
        done = sum(b.ticks for events in transport.done for i, b in events if i == index)
        asked = sum(r.ticks for r in transport.requests[index])
        reserved.append(collector.streams[index].ticks + done + asked)

    transport.ask = noted
    assert loop.run() == "finished"
    assert max(reserved) <= QUEUE
    assert max(busy.ahead) <= QUEUE
    learning = busy.ahead[len(busy.ahead) // 2 :]
    assert np.mean(learning) >= QUEUE - 2, learning  # some blocks hold a quick reset


def test_requests_do_not_pile_up_in_the_pipe():
    """A pipe holds a few hundred small messages; a learner that sends one more would wait."""
    ours, theirs = multiprocessing.Pipe()
    served, left = [], []

    def collect(request, newer, stopped):
        left.append(theirs.poll())
        served.append(request.ticks)
        return None if len(served) == 40 else "a block"

    for ticks in range(20):
        ours.send((Request(ticks, 1.0, False), 2))
    _answer(theirs, SimpleNamespace(stopped=False), SimpleNamespace(collect=collect))
    assert served == [ticks for ticks in range(20) for _ in range(2)]
    assert not any(left)


class Clocked(Inline):
    """One step of its environments takes 50 ms by a clock of its own; each tick is a block."""

    def __init__(self, make):
        super().__init__(make)
        self.now, self.next = 0.0, 0.05

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        self.now = min(self.now + timeout_s, self.next)
        if not timeout_s or self.now < self.next:
            return []
        self.next += 0.05
        return super().events(timeout_s)


def test_weights_are_sent_while_the_learner_waits_for_steps(tmp_path, monkeypatch):
    """3 s pass between two updates; the actors' weights are outdated for 1 s and a block."""
    options = ("actors.block_ticks=1", "actors.queue_ticks=8", "actors.weights_age_s=1")
    cycle = ("training.phases.1.collect_ticks=60", "training.total_frames=1500")
    loop = open_loop(tmp_path / "r", *SAC, *TWO, *options, *cycle)
    collector, inline = put_inline(loop)
    collector.transport = transport = Clocked(inline.make)
    clock = SimpleNamespace(monotonic=lambda: transport.now)
    monkeypatch.setattr(collector_module, "time", clock)
    assert loop.run() == "finished"
    ages = [r.get("actors/weights_age_max_s", 0.0) for r in metrics(tmp_path / "r")]
    assert 0.9 < max(ages) <= 1.1, ages


def test_a_collection_begins_with_weights_that_are_due(tmp_path, monkeypatch):
    """Weights that became due during something else are sent before the next step is awaited."""
    loop = open_loop(tmp_path / "r", *SAC, *TWO, "actors.weights_age_s=1")
    _, transport = put_inline(loop)
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(collector_module, "time", clock)
    sent = []

    class Long(Observer):
        def before(self, action):
            if action == "collect" and loop.counters.updates:
                clock.now += 2.0  # such as a checkpoint
                sent.append(transport.published)

        def after(self, action):
            if action == "collect" and loop.counters.updates:
                sent.append(transport.published)

    loop.observers.add(Long())
    loop.run()
    before, after = sent[::2], sent[1::2]
    assert all(b > a for a, b in zip(before, after, strict=True))
