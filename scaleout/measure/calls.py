"""Operations to PyTorch calls: how each operation of `scaleout.operations` is carried out on a GPU."""

from collections.abc import Mapping

from scaleout.measure import compiled, images, layers, products, recommendation
from scaleout.measure.tensors import Maker

MAKERS: Mapping[str, Maker] = {
    **products.MAKERS,
    **layers.MAKERS,
    **compiled.MAKERS,
    **images.MAKERS,
    **recommendation.MAKERS,
}
"""Operation to the maker of its call."""
