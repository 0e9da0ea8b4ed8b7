"""Operations to PyTorch calls: how each operation of `scaleout.program.operations` is carried out on a GPU."""

from collections.abc import Mapping

from scaleout.validation.measure import compiled, gemms, images, layers, recommendation
from scaleout.validation.measure.tensors import Maker

MAKERS: Mapping[str, Maker] = {
    **gemms.MAKERS,
    **layers.MAKERS,
    **compiled.MAKERS,
    **images.MAKERS,
    **recommendation.MAKERS,
}
"""Operation to the maker of its call."""
