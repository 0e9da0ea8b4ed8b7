"""ASTRA-sim's rules played message by message by small processes, with nothing shared with `scaleout.interop.astra`.

Slow and plain: every rank of every stream is a generator that waits, sends and receives. What it says of random small
jobs must be what the package says. It is written from the rules (a chunk, a queue, a step at a time), knows all ranks
and folds nothing.
"""

import heapq
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import partial
from itertools import count


@dataclass
class World:
    """Processes, their messages and their queues."""

    kinds: list
    counts: list
    latency: list
    gib_per_s: list
    endpoint: int
    mem: float
    aware: bool = False
    now: int = 0
    events: list = field(default_factory=list)
    order: count = field(default_factory=count)
    mail: dict = field(default_factory=dict)
    readers: dict = field(default_factory=dict)
    free: dict = field(default_factory=lambda: defaultdict(int))
    slots: dict = field(default_factory=dict)
    lines: dict = field(default_factory=lambda: defaultdict(deque))

    def at(self, time, action):
        heapq.heappush(self.events, (time, next(self.order), action))

    def go(self, process, value=None):
        """Advance a process to its next wish: a time to wait until, a message to have, or a slot."""
        try:
            verb, *wish = process.send(value)
        except StopIteration:
            return
        if verb == "until":
            self.at(wish[0], lambda: self.go(process))
        elif verb == "message":
            if wish[0] in self.mail:
                self.at(self.now, lambda: self.go(process, self.mail[wish[0]]))
            else:
                self.readers[wish[0]] = process
        elif verb == "slot":
            self.lines[wish[0]].append(process)
            self.admit(wish[0])

    def admit(self, queue):
        while self.lines[queue] and self.slots[queue] > 0:
            self.slots[queue] -= 1
            process = self.lines[queue].popleft()
            self.at(self.now, lambda process=process: self.go(process))

    def release(self, queue):
        self.slots[queue] += 1
        self.admit(queue)

    def run(self):
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()

    def coordinates(self, rank):
        found = []
        for size in self.counts:
            found.append(rank % size)
            rank //= size
        return found

    def route(self, source, target):
        """Links, in the first dimension in which the two differ."""
        here, there = self.coordinates(source), self.coordinates(target)
        dim = next(d for d in range(len(here)) if here[d] != there[d])
        n, a, b = self.counts[dim], here[dim], there[dim]
        if self.kinds[dim] == "FullyConnected":
            return dim, [("pair", source, target)]
        if self.kinds[dim] == "Switch":
            return dim, [("out", source), ("in", target)]
        right = (b - a) % n
        step = 1 if right <= n - right else -1
        hops = min(right, n - right)
        return dim, [(step, (a + step * hop) % n) for hop in range(hops)]

    def send(self, source, target, size, key):
        dim, links = self.route(source, target)
        beta = self.gib_per_s[dim] * 2**30 / 1e9
        if not self.aware:
            self.at(self.now + int(len(links) * self.latency[dim] + size / beta), lambda: self.deliver(key))
            return

        def hop(left):
            if not left:
                self.deliver(key)
                return
            start = max(self.now, self.free[left[0]])
            self.free[left[0]] = start + int(size / beta)
            # The link is taken at `start`; only then is the arrival known.
            self.at(start, lambda: self.at(start + int(self.latency[dim] + size / beta), lambda: hop(left[1:])))

        hop(links)

    def deliver(self, key):
        self.mail[key] = self.now
        if key in self.readers:
            self.go(self.readers.pop(key), self.now)

    def red(self, size):
        return 3 * int(size / (self.mem * 1e9) * 1e9)


def ring(world, kind, ranks, me, *, size, name):
    n = len(ranks)
    chunk = size if kind == "all-gather" else size // n
    steps = {"all-reduce": 2 * (n - 1), "all-to-all": n * (n - 1) // 2}.get(kind, n - 1)
    yield "until", world.now + world.endpoint
    for step in range(steps):
        world.send(ranks[me], ranks[(me + 1) % n], chunk, (*name, step, ranks[(me + 1) % n]))
        yield "message", (*name, step, ranks[me])
        reduces = kind in ("all-reduce", "reduce-scatter") and step < n - 1
        yield "until", world.now + world.endpoint + (world.red(chunk) if reduces else 0)


def halving_doubling(world, kind, ranks, me, *, size, name):
    n = len(ranks)
    levels = n.bit_length() - 1
    down = [(size >> (k + 1), 1 << k) for k in range(levels)]
    up = [((size >> (levels + 1) << 1) << (levels - 1 - k), 1 << k) for k in reversed(range(levels))]
    if kind == "all-gather":
        down, up = [], [(size << k, 1 << (levels - 1 - k)) for k in range(levels)]
    if kind == "reduce-scatter":
        up = []
    yield "until", world.now + world.endpoint
    for step, (chunk, distance) in enumerate(down + up):
        partner = ranks[me ^ distance]
        world.send(ranks[me], partner, chunk, (*name, step, partner))
        yield "message", (*name, step, ranks[me])
        more = world.red(down[step + 1][0]) if step + 1 < len(down) else 0
        yield "until", world.now + world.endpoint + more


def direct(world, kind, ranks, me, *, size, name):
    n = len(ranks)
    chunk = size if kind == "all-gather" else size // n
    yield "until", world.now + world.endpoint
    posted = [world.now] * (n - 1)
    permits, last = [], 0
    for wave in range(2 if kind == "all-reduce" else 1):
        if wave == 0:
            for d in range(1, n):
                target = ranks[(me + d) % n]
                world.send(ranks[me], target, chunk, (*name, wave, d, target))
        else:
            opened = min(p for p in permits if p >= last)
            posted = [max(permit, opened) for permit in permits]
            for d in range(1, n):
                yield "until", posted[d - 1]
                target = ranks[(me + d) % n]
                world.send(ranks[me], target, chunk, (*name, wave, d, target))
        came = []
        for d in range(1, n):
            arrived = yield "message", (*name, wave, d, ranks[me])
            came.append(max(arrived, posted[d - 1]))
        last = max(came)
        work = world.red(chunk) if wave == 0 and kind in ("all-reduce", "reduce-scatter") else 0
        permits = sorted(each + world.endpoint + work for each in came)
    yield "until", permits[-1]


def tree_of(members):
    """In-order tree of 2**k - 1 members: its root, and parent to children."""
    if len(members) == 1:
        return members[0], {}
    middle = len(members) // 2
    left, below_left = tree_of(members[:middle])
    right, below_right = tree_of(members[middle + 1 :])
    return members[middle], {members[middle]: [left, right], **below_left, **below_right}


def double_binary_tree(world, kind, ranks, me, *, size, name):
    n, turn = len(ranks), name[-1]
    root = n - 1 if turn == 0 else 0
    top, children = tree_of([i for i in range(n) if i != root])
    children[root] = [top]
    parent = next((p for p, below in children.items() if me in below), None)
    mine = children.get(me, [])
    begun = world.now
    ready = begun if mine else begun + world.endpoint
    for child in mine:
        arrived = yield "message", (*name, child, me)
        ready = max(ready, max(arrived, begun) + world.endpoint + world.red(size))
    yield "until", max(ready, world.now)
    if parent is not None:
        world.send(ranks[me], ranks[parent], size, (*name, me, parent))
        yield "message", (*name, parent, me)
        yield "until", world.now + world.endpoint + (world.red(size) if mine else 0)
    for child in mine:
        world.send(ranks[me], ranks[child], size, (*name, me, child))


ALGORITHMS = {
    "ring": ring,
    "halvingDoubling": halving_doubling,
    "direct": direct,
    "doubleBinaryTree": double_binary_tree,
}


def phases(kind, counts, baseline):
    dims = list(range(len(counts)))
    if kind == "all-reduce" and not baseline:
        first, last = dims[:-1], dims[-1]
        return (
            [("reduce-scatter", d) for d in first] + [("all-reduce", last)] + [("all-gather", d) for d in first[::-1]]
        )
    return [(kind, d) for d in (dims[::-1] if kind == "all-gather" else dims)]


def collective(world, kind, size, algorithms, *, starts, splits, active, baseline=False, tree=0):
    """Return when each rank has a collective that it begins at its start."""
    total = 1
    for n in world.counts:
        total *= n
    chunk = size // splits
    if chunk < total and kind != "all-gather":
        chunk, size = total, splits * total
    ended = [0] * total

    def stream(rank, number):
        data, held = chunk, None
        coordinates = world.coordinates(rank)
        for leg, (what, dim) in enumerate(phases(kind, world.counts, baseline)):
            queue = (rank, dim)
            # A stream lines up for its next queue before it leaves the one it is in.
            previous, held = held, queue
            if previous is not None:
                world.at(world.now, lambda previous=previous: world.release(previous))
            yield "slot", queue
            stride = 1
            for n in world.counts[:dim]:
                stride *= n
            first = rank - coordinates[dim] * stride
            ranks = [first + stride * i for i in range(world.counts[dim])]
            name = (number, leg, first, (tree + number) % 2) if algorithms[dim] == "doubleBinaryTree" else (number, leg)
            yield from ALGORITHMS[algorithms[dim]](world, what, ranks, coordinates[dim], size=data, name=name)
            if what == "reduce-scatter":
                data //= len(ranks)
            elif what == "all-gather":
                data *= len(ranks)
        ended[rank] = max(ended[rank], world.now)
        world.release(held)

    for rank in range(total):
        for dim in range(len(world.counts)):
            world.slots[rank, dim] = active
    for rank in range(total):
        for number in range(-(-size // chunk)):
            world.at(starts[rank], partial(world.go, stream(rank, number)))
    world.run()
    return ended
