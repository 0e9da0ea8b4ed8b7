"""Long names of inputs to short ones, for axes and legends."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

_LONG = 24
"""Letters of a name from which it has a short form."""
_KEYED = re.compile(r",\w+=[^,()]*")
"""What an expression such as `fat_tree(8,16,taper=2:1)` says by a key."""
_DEFINES = ",taper="
"""Begin of the key that says which network it is, as much as its sizes: how far it blocks."""


def shortened(names: Iterable[str]) -> dict[str, str]:
    """Return short forms of those of some names that are long: of keys in brackets a taper and what tells them apart.

    >>> shortened(["ring-128", "fat_tree(8,16,bandwidth=200Gb/s,latency=700ns/540ns)"])
    {'fat_tree(8,16,bandwidth=200Gb/s,latency=700ns/540ns)': 'fat_tree(8,16,…)'}
    >>> list(shortened(f"fat_tree(8,16,bandwidth=200Gb/s,taper={n}:1)" for n in (1, 2)).values())
    ['fat_tree(8,16,…,taper=1:1)', 'fat_tree(8,16,…,taper=2:1)']
    """
    alike = defaultdict[str, list[str]](list)
    for name in names:
        alike[_KEYED.sub("", name)].append(name)
    found = {}
    for some in alike.values():
        common = set.intersection(*(set(_KEYED.findall(name)) for name in some))
        common = {part for part in common if not part.startswith(_DEFINES)}
        for name in some:
            short = _KEYED.sub(lambda part: ",…" if part[0] in common else part[0], name)  # noqa: B023 - called here
            found[name] = re.sub("(,…)+", ",…", short)
    unlike = Counter(found.values())
    return {name: short for name, short in found.items() if len(name) > _LONG and short != name and unlike[short] == 1}
