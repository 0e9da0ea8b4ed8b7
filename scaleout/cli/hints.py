"""What an unknown option may mean: the option of ours for a word of other tools, or the key of a workload."""

import click

_MEANT = {
    "b": ("--bytes",),
    "e": ("--bytes",),
    "maxbytes": ("--bytes",),
    "minbytes": ("--bytes",),
    "batch": ("--global-batch",),
    "batch_size": ("--global-batch",),
    "gbs": ("--global-batch",),
    "message_size": ("--bytes",),
    "msg_size": ("--bytes",),
    "num_bytes": ("--bytes",),
    "payload": ("--bytes",),
    "size": ("--bytes", "--gpus --nodes"),
    "sizes": ("--bytes", "--gpus --nodes"),
    "device": ("--topology",),
    "devices": ("--gpus", "--group"),
    "gpus": ("--group",),
    "nproc_per_node": ("--gpus",),
    "ngpus": ("--gpus", "--group"),
    "gpu": ("--device --gpus",),
    "hardware": ("--device",),
    "np": ("--gpus", "--group"),
    "num_gpus": ("--gpus", "--group"),
    "ranks": ("--gpus", "--group"),
    "world_size": ("--gpus",),
    "num_nodes": ("--nodes",),
    "nnodes": ("--nodes",),
    "cluster": ("--topology",),
    "network_topology": ("--topology",),
    "algo": ("--algorithm",),
    "out": ("--output",),
    "output_dir": ("--output",),
    "oversubscription": ("--taper",),
    "straggler": ("--slow",),
    "memory_limit": ("--memory",),
}
"""A word to the options that it may mean, of which the first count that the verb has any of."""


_NOT_OURS = {
    "proto": "The library's file says which protocols there are, and the fastest is taken: scaleout show TOPOLOGY has "
    "them, and the table of scaleout collective the one that each algorithm takes.",
}
"""What is no option of ours, and what there is instead."""
_NOT_OURS["protocol"] = _NOT_OURS["protocols"] = _NOT_OURS["proto"]


def with_hint(error: click.NoSuchOption) -> click.UsageError:
    """Return the error with what the option may mean, or as it is where nothing is known of the word."""
    if error.ctx is None:
        return error
    options = {name for each in error.ctx.command.params for name in each.opts}
    word = error.option_name.lstrip("-").replace("-", "_").lower()
    known = [[name for name in names.split() if name in options] for names in _MEANT.get(word, ())]
    meant = next(filter(None, known), [])
    if meant:
        words = f"No such option {error.option_name!r}. Did you mean {' or '.join(map(repr, meant))}?"
        return click.UsageError(words, error.ctx)
    if word in _NOT_OURS:
        return click.UsageError(f"No such option {error.option_name!r}. {_NOT_OURS[word]}", error.ctx)
    if (spelt := f"--{word.replace('_', '-')}") in options:
        return click.UsageError(f"No such option {error.option_name!r}. Did you mean {spelt!r}?", error.ctx)
    key, kinds = _key(word) if "--set" in options else ("", "")
    if not key:
        return error
    words = f"No such option {error.option_name!r}. It is a key of the workload: --set {key}=VALUE{kinds}; "
    return click.UsageError(f"{words}scaleout show --keys workload {key} says what it may be.", error.ctx)


def _key(word: str) -> tuple[str, str]:
    """Return the key of a workload that a word means, and of which kinds, if not of all; no key if none is so named."""
    from scaleout.config.reading import key_of
    from scaleout.workloads.families import FAMILIES

    fields = {kind: {each.alias or name for name, each in of.model_fields.items()} for kind, of in FAMILIES.items()}
    keys = set[str]().union(*fields.values())
    key = word if word in keys else key_of(word, keys)
    kinds = [kind for kind, of in fields.items() if key in of]
    return key, "" if len(kinds) == len(fields) else f" (of kind {', '.join(kinds)})"
