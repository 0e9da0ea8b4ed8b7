"""Unknown words to the nearest known ones, and old names to new ones.

Apart from `yaml_files` and `validated`, which take long to import. Knows no keys.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

_SAID_ELSEWHERE = {
    "batch": "batch_per_replica",
    "batch_size": "batch_per_replica",
    "batchsize": "batch_per_replica",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "ep": "expert_parallel",
    "fsdp": "zero",
    "global_batch": "batch_per_replica",
    "pp": "pipeline_parallel",
    "tp": "tensor_parallel",
}
"""Words of the field, to which no name of ours is near by its letters."""


_WHAT = {
    "batch_per_replica": "sequences of a step of each replica: the global batch over data_parallel",
}
"""What such a name is, where the word means something else."""

_FEW = 4
"""Names that begin with what was given, which are all named."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word nearest to `name`, or all of them if none is near."""
    import difflib  # noqa: PLC0415 - only for messages

    words = sorted(known)
    if _SAID_ELSEWHERE.get(name) in words:
        meant = _SAID_ELSEWHERE[name]
        return f"did you mean {meant!r}{f', {_WHAT[meant]}' if meant in _WHAT else ''}?"
    begun = [word for word in words if len(name) > 1 and word.lower().startswith(name.lower())]
    if begun and len(begun) <= _FEW:
        return f"did you mean {' or '.join(map(repr, begun))}?"
    close = difflib.get_close_matches(name[:100], words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words)}"


def renamed(word: str, names: Mapping[str, str], *, what: str) -> str:
    """Return the new name of a renamed word, with a warning; any other word as it is.

    `names` are old names to new ones; `what` is what the word is, such as ``key`` or ``--clocks``.
    """
    if word not in names:
        return word
    warnings.warn(f"{what} {word!r} is now {names[word]!r}; the old name goes with the next release", FutureWarning, 2)
    return names[word]


def with_new_names(values: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return values under the new names of their keys, with a warning for each key that was renamed."""
    old = [key for key in values if key in names]
    for key in old:
        if names[key] in values:
            raise ValueError(f"{key!r} is the old name of {names[key]!r}; give the new one alone")
    return {renamed(key, names, what="key"): value for key, value in values.items()} if old else values
