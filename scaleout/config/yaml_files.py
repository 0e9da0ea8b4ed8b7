"""YAML files to plain values. Knows no keys."""

from pathlib import Path
from typing import Any

import yaml

from scaleout.errors import ConfigError


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping, or raise `ConfigError`."""
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML ({str(error).splitlines()[0]}); mend the file") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no mapping of keys to values; see the shipped files for the form")
    return value


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that refuses a key given twice in a mapping, where YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping
