"""Published numbers of the papers, simulated: one module a paper, each figure once.

`published` reads the claims; `answers` simulates the figures that answer them and says which are met.
"""

from scaleout.reproductions.answers import PAPERS, Reproduced, reproduce
from scaleout.reproductions.page import cells, page
from scaleout.reproductions.published import Published, published

__all__ = ["PAPERS", "Published", "Reproduced", "cells", "page", "published", "reproduce"]
