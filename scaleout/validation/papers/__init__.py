"""Published numbers of the papers, simulated: one module a paper, each figure once.

`published` reads the claims; `answers` simulates the figures that answer them and says which are met.
"""

from scaleout.validation.papers.answers import PAPERS, Reproduced, cells, page, reproduce
from scaleout.validation.papers.claims import Published, published

__all__ = ["PAPERS", "Published", "Reproduced", "cells", "page", "published", "reproduce"]
