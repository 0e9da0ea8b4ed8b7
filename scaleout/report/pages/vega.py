"""Scripts of Vega, from an engine of JavaScript that reserves 64 GiB of addresses, whatever memory it then takes.

With fewer, or without files of its own, it ends the process, so that the limits are asked first.
"""

from scaleout.errors import ConfigError

_ADDRESSES_BYTES = 70 * 10**9
"""Of a process that has drawn a chart; seen are 67.4e9 with vl-convert 1.9 on Linux."""
_FILES = 64
"""Open at the same time; seen are 20."""


def check_limits(instead: str) -> None:
    """Raise `ConfigError` where a process may not reserve what the engine takes; `instead` says how to do without."""
    try:
        import resource  # noqa: PLC0415 - Windows has none
    except ImportError:
        return
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if most != resource.RLIM_INFINITY and most < _ADDRESSES_BYTES:
        raise ConfigError(
            f"a page for the browser is made by an engine that reserves {_ADDRESSES_BYTES / 1e9:.0f} GB of addresses, "
            f"not of memory, and this process may have {most / 1e9:.3g} GB; raise `ulimit -v`, or {instead}"
        )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < _FILES:
        raise ConfigError(
            f"a page for the browser takes up to {_FILES} open files, and this process may have {files}; raise "
            f"`ulimit -n`, or {instead}"
        )


def chart_script() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which names `vegaEmbed`."""
    import vl_convert  # noqa: PLC0415 - none is drawn without the limit being asked

    return vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub lacks the default
